"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const canvas = byId("timeline"), overview = byId("overview"), tip = byId("tip");
  const GUTTER = 118, AXIS = 28, ROW = 50, ROW_GAP = 12, ROUNDS = data.rounds.length ? 16 : 0, OVERVIEW_ROW = 9;
  const START = 0, LENGTH = 1, WAVE = 2, SLOT = 3, DECODE = 4, SPANS = 5, CAUSE = 2;
  const total = Math.max(data.duration, 1);
  const view = { from: 0, to: total };
  let focus = -1, hover = null, drag = null, theme = null;

  // ---- numbers ----------------------------------------------------------------------------------------------------
  const requests = data.requests.map(([rid, announced, ended, endpoint, verdict], index) => ({
    index, rid, announced, ended, endpoint, verdict, computed: 0, spans: 0, decoded: 0, firstSpan: -1, position: -1, last: -1,
    name: shortName(rid, index), color: colorOf(index),
  }));
  const causes = data.causes.map(([name, meaning, ground, line, tile]) => ({ name, meaning, ground, line, tile }));
  const rows = data.rows.map(({ name, waves, gaps }) => {
    let busy = 0, reach = 0, longest = 0;
    for (const w of waves) {
      busy += Math.max(0, w[START] + w[LENGTH] - Math.max(reach, w[START]));
      reach = Math.max(reach, w[START] + w[LENGTH]);
      longest = Math.max(longest, w[LENGTH]);
    }
    const from = Math.min(waves.length ? waves[0][START] : 0, gaps.length ? gaps[0][START] : Infinity);
    const to = Math.max(reach, ...gaps.slice(-1).map((gap) => gap[START] + gap[LENGTH]));
    const why = causes.map((_, cause) => gaps.reduce((sum, gap) => sum + (gap[CAUSE] === cause ? gap[LENGTH] : 0), 0));
    const prefill = waves.filter((w) => !w[DECODE]);
    return {
      name, waves, gaps, why, from, to, longest, busy, idle: to > from ? 1 - busy / (to - from) : 1, prefill: prefill.length,
      shared: prefill.filter((w) => w[SPANS].length > 3).length, tokens: prefill.reduce((sum, w) => sum + tokensOf(w), 0),
    };
  });
  if (rows.length) {
    for (const w of rows[0].waves) {
      for (let k = 0; k < w[SPANS].length; k += 3) {
        const r = requests[w[SPANS][k]];
        if (w[DECODE]) { r.decoded += 1; } else { r.spans += 1; r.computed += w[SPANS][k + 2]; }
        if (r.firstSpan < 0 && !w[DECODE]) { r.firstSpan = w[START]; r.position = w[SPANS][k + 1]; }
        r.last = Math.max(r.last, w[START] + w[LENGTH]);
      }
    }
  }
  const arrivals = requests.filter((r) => r.announced >= 0);
  const lanes = dealLanes(arrivals);
  const laneHeight = lanes ? Math.max(2, Math.min(9, 110 / lanes)) : 0;
  const waitArea = lanes ? lanes * laneHeight + 14 : 0;
  const rowTop = (i) => AXIS + ROUNDS + waitArea + i * (ROW + ROW_GAP);
  const height = rowTop(rows.length) + 2;

  function shortName(rid, index) { // between ranks a request is called "arrival number:rid of the client"
    const own = rid.replace(/^\d+:/, "");
    return own.length <= 18 ? own : `#${index + 1} ${own.slice(0, 6)}`;
  }
  function tokensOf(wave) {
    let sum = 0;
    for (let k = 2; k < wave[SPANS].length; k += 3) sum += wave[SPANS][k];
    return sum;
  }
  function waitEnd(r) { return Math.max(r.ended, r.firstSpan >= 0 ? r.firstSpan : r.ended, r.announced); }
  function dealLanes(list) {
    const ends = [];
    for (const r of list) {
      let lane = ends.findIndex((end) => end <= r.announced);
      if (lane < 0) { lane = ends.length; ends.push(0); }
      ends[lane] = waitEnd(r) + total / 400;
      r.lane = lane;
    }
    return ends.length;
  }

  // ---- colours ----------------------------------------------------------------------------------------------------
  function colorOf(index) { return data.colours[index % data.colours.length]; }
  function inkOn(color) { // dark or white, whichever reads better
    const linear = [1, 3, 5].map((k) => Number.parseInt(color.slice(k, k + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.19 ? "#ffffff" : "#1b2130";
  }
  function readTheme() {
    const style = getComputedStyle(document.documentElement);
    theme = {};
    for (const name of ["panel", "ink", "soft", "line", "idle", "grid", "accent", "warn"]) {
      theme[name] = style.getPropertyValue(`--${name}`).trim();
    }
    theme.decode = stripes("#ffffff");
    causes.forEach((cause) => { cause.fill = cause.ground ? tiled(cause) : null; });
    theme.wait = hatch(null, theme.panel, 4, 0.75);
  }
  function hatch(background, line, size, alpha = 1) {
    const tile = document.createElement("canvas"), scale = window.devicePixelRatio || 1;
    tile.width = tile.height = Math.round(size * scale);
    const g = tile.getContext("2d"), n = tile.width;
    if (background) { g.fillStyle = background; g.fillRect(0, 0, n, n); }
    g.strokeStyle = line; g.globalAlpha = alpha; g.lineWidth = scale; g.beginPath();
    for (const shift of [-n, 0, n]) { g.moveTo(shift - 1, n + 1); g.lineTo(shift + n + 1, -1); }
    g.stroke();
    const pattern = g.createPattern(tile, "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / scale));
    return pattern;
  }

  function isDark() {
    const asked = document.documentElement.dataset.theme;
    return asked ? asked === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function tiled({ ground, line, tile }) { // the pattern that the picture without a script has too
    return pattern(6, (g) => {
      g.fillStyle = isDark() ? theme.idle : ground; g.fillRect(0, 0, 6, 6);
      const late = line === causes[0].line;
      g.strokeStyle = isDark() && late ? theme.warn : line; g.globalAlpha = isDark() && !late ? 0.5 : 1; g.stroke(new Path2D(tile));
    });
  }
  function stripes(line) {
    return pattern(4, (g) => { g.strokeStyle = line; g.globalAlpha = 0.8; g.lineWidth = 1.4; g.stroke(new Path2D("M0,2 h4")); });
  }
  function pattern(size, paint) {
    const tile = document.createElement("canvas"), scale = window.devicePixelRatio || 1;
    tile.width = tile.height = Math.round(size * scale);
    const g = tile.getContext("2d");
    g.scale(tile.width / size, tile.height / size);
    paint(g);
    const made = g.createPattern(tile, "repeat");
    made.setTransform(new DOMMatrix().scale(size / tile.width));
    return made;
  }

  // ---- words ------------------------------------------------------------------------------------------------------
  function time(us, digits = 3) {
    const abs = Math.abs(us);
    if (abs >= 1e6) return `${Number((us / 1e6).toPrecision(Math.max(digits, 1 + Math.floor(Math.log10(abs / 1e6)))))} s`;
    if (abs >= 1e3) return `${Number((us / 1e3).toPrecision(digits))} ms`;
    return `${Number(us.toPrecision(digits))} µs`;
  }
  const count = (n) => n.toLocaleString("en-US");
  const percent = (x) => `${(100 * x).toFixed(x < 0.0995 && x > 0 ? 1 : 0)}%`;
  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }
  const dot = (color) => { const node = element("span", { class: "dot" }); node.style.background = color; return node; };

  // ---- drawing ----------------------------------------------------------------------------------------------------
  const width = () => canvas.clientWidth;
  const scale = () => (width() - GUTTER) / (view.to - view.from);
  const xOf = (t) => GUTTER + (t - view.from) * scale();
  const tOf = (x) => view.from + (x - GUTTER) / scale();

  function prepare(target, cssHeight) {
    const ratio = window.devicePixelRatio || 1;
    target.style.height = `${cssHeight}px`;
    target.width = Math.round(target.clientWidth * ratio);
    target.height = Math.round(cssHeight * ratio);
    const g = target.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, target.clientWidth, cssHeight);
    return g;
  }

  let pending = false;
  function redraw() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; draw(); drawOverview(); });
  }

  function draw() {
    const g = prepare(canvas, height);
    g.font = "12px system-ui, sans-serif";
    g.textBaseline = "middle";
    drawAxis(g);
    g.save();
    g.beginPath(); g.rect(GUTTER, 0, width() - GUTTER, height); g.clip();
    if (ROUNDS) drawRounds(g);
    if (lanes) drawWaits(g);
    rows.forEach((row, i) => drawRow(g, row, rowTop(i)));
    drawMarks(g);
    if (hover && hover.wave) drawJourney(g, hover.wave[WAVE]);
    g.restore();
    drawLabels(g);
  }

  function drawAxis(g) {
    const rough = (view.to - view.from) / Math.max(2, (width() - GUTTER) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
    g.textAlign = "center";
    for (let k = Math.ceil(view.from / step); k * step <= view.to; k++) {
      const x = Math.round(xOf(k * step)) + 0.5;
      g.strokeStyle = theme.grid; g.lineWidth = 1;
      g.beginPath(); g.moveTo(x, AXIS - 6); g.lineTo(x, height); g.stroke();
      g.fillStyle = theme.soft;
      const digits = Math.min(9, Math.max(3, Math.ceil(Math.log10(Math.max(1, (k * step) / step))) + 1));
      if (x > GUTTER + (k ? 18 : -1) && x < width() - 24) g.fillText(k ? time(k * step, digits) : "0", x, AXIS / 2 - 2);
    }
  }

  function drawRounds(g) {
    g.fillStyle = theme.soft;
    for (const [start, length] of data.rounds) {
      const x = xOf(start), w = Math.max(1, length * scale());
      if (x + w < GUTTER || x > width()) continue;
      g.globalAlpha = 0.45;
      g.fillRect(x, AXIS + 3, w, ROUNDS - 8);
    }
    g.globalAlpha = 1;
  }

  function drawWaits(g) {
    const top = AXIS + ROUNDS, thick = Math.max(1.5, laneHeight - 2.5);
    for (const r of arrivals) {
      const x0 = xOf(r.announced), x1 = xOf(r.ended), x2 = xOf(waitEnd(r)), y = top + r.lane * laneHeight + 2;
      if (x2 < GUTTER - 4 || x0 > width()) continue;
      g.globalAlpha = focus >= 0 && focus !== r.index ? 0.15 : 1;
      g.fillStyle = r.color;
      g.fillRect(x0, y, Math.max(1.5, x2 - x0), thick);
      if (x1 - x0 > 2) { g.fillStyle = theme.wait; g.fillRect(x0, y, x1 - x0, thick); }
      if (r.verdict === "refused") { g.fillStyle = theme.warn; g.fillRect(x1 - 1, y - 1, 3, thick + 2); }
      else if (laneHeight >= 5 && x2 - x0 > 4) { g.fillStyle = theme.ink; g.fillRect(x1 - 0.5, y - 1, 1.5, thick + 2); }
    }
    g.globalAlpha = 1;
  }

  function firstVisible(row, from) { // first wave that may reach into the view
    let low = 0, high = row.waves.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (row.waves[mid][START] < from - row.longest) low = mid + 1; else high = mid;
    }
    return low;
  }

  function firstGap(row, from) { // gaps follow each other
    let low = 0, high = row.gaps.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (row.gaps[mid][START] + row.gaps[mid][LENGTH] < from) low = mid + 1; else high = mid;
    }
    return low;
  }

  function drawRow(g, row, top) {
    for (let k = firstGap(row, view.from); k < row.gaps.length && row.gaps[k][START] <= view.to; k++) {
      const [start, length, cause] = row.gaps[k], left = Math.max(GUTTER, xOf(start));
      if (!causes[cause].fill) continue;
      g.fillStyle = causes[cause].fill;
      g.fillRect(left, top, Math.max(0.4, Math.min(width(), xOf(start + length)) - left), ROW);
    }
    for (let k = firstVisible(row, view.from); k < row.waves.length && row.waves[k][START] <= view.to; k++) {
      drawWave(g, row.waves[k], top);
    }
  }

  function boxOf(wave, top) {
    let x = xOf(wave[START]), w = wave[LENGTH] * scale();
    if (w > 3) { w -= w > 8 ? 1 : 0.5; }
    const h = wave[DECODE] ? ROW * 0.56 : ROW;
    return { x, y: top + (ROW - h) / 2, w, h };
  }

  function drawWave(g, wave, top) {
    const { x, y, w, h } = boxOf(wave, top), spans = wave[SPANS];
    if (x + w < GUTTER - 1) return;
    const radius = w > 10 ? 3 : 0;
    if (radius) { g.save(); g.beginPath(); g.roundRect(x, y, w, h, radius); g.clip(); }
    if (!spans.length) { g.fillStyle = theme.soft; g.fillRect(x, y, w, h); }
    const sum = Math.max(1, tokensOf(wave));
    let at = y;
    for (let k = 0; k < spans.length; k += 3) {
      const band = (h * spans[k + 2]) / sum;
      g.globalAlpha = focus >= 0 && focus !== spans[k] ? 0.16 : 1;
      g.fillStyle = requests[spans[k]].color;
      g.fillRect(x, at, w, band);
      if (k && band > 3 && w > 3) { g.globalAlpha = 0.8; g.fillStyle = theme.panel; g.fillRect(x, at - 0.5, w, 1); }
      at += band;
    }
    g.globalAlpha = focus >= 0 ? 0.4 : 1;
    if (wave[DECODE] && w > 2) { g.fillStyle = theme.decode; g.fillRect(x, y, w, h); }
    g.globalAlpha = 1;
    if (radius) g.restore();
    if (w > 26) label(g, wave, x, y, w, h, sum);
  }

  function label(g, wave, x, y, w, h, sum) {
    const spans = wave[SPANS];
    const lone = spans.length === 3 && !wave[DECODE];
    const from = Math.max(x, GUTTER), to = Math.min(x + w, width());
    if (to - from < 24) return;
    g.save(); g.beginPath(); g.rect(from + 2, y, to - from - 4, h); g.clip();
    g.fillStyle = inkOn(colorAtMiddle(spans, sum)); g.textAlign = "center";
    const middle = (from + to) / 2;
    g.font = "600 12px system-ui, sans-serif";
    if (wave[DECODE]) {
      const plate = g.measureText(String(wave[WAVE])).width + 8;
      g.globalAlpha = 0.75; g.fillStyle = "#fff"; g.beginPath(); g.roundRect(middle - plate / 2, y + h / 2 - 8, plate, 16, 4); g.fill();
      g.globalAlpha = 1; g.fillStyle = "#14181f";
      g.fillText(String(wave[WAVE]), middle, y + h / 2 + 0.5);
    } else if (to - from > 96 && lone) {
      g.fillText(`${wave[WAVE]}`, middle, y + h / 2 - 8);
      g.font = "11px system-ui, sans-serif";
      g.fillText(`${count(spans[1])} – ${count(spans[1] + spans[2])}`, middle, y + h / 2 + 8);
    } else {
      const words = [`${wave[WAVE]} · ${spans.length / 3} requests · ${count(sum)}`, `${wave[WAVE]} · ${spans.length / 3} requests`];
      const fitting = lone ? undefined : words.find((text) => g.measureText(text).width < to - from - 12);
      g.fillText(fitting ?? String(wave[WAVE]), middle, y + h / 2 + 0.5);
    }
    g.restore();
  }

  function colorAtMiddle(spans, sum) {
    let at = 0, k = 0;
    while (k + 3 < spans.length && at + spans[k + 2] <= sum / 2) { at += spans[k + 2]; k += 3; }
    return spans.length ? requests[spans[k]].color : theme.soft;
  }

  function drawMarks(g) {
    for (const [at, name, index] of data.marks) {
      if (name !== "aborted" && name !== "refused") continue;
      const x = xOf(at);
      if (x < GUTTER || x > width()) continue;
      g.globalAlpha = focus >= 0 && focus !== index ? 0.2 : 0.9;
      g.strokeStyle = theme.warn; g.setLineDash([3, 3]);
      g.beginPath(); g.moveTo(x, AXIS + ROUNDS); g.lineTo(x, height); g.stroke();
      g.setLineDash([]); g.globalAlpha = 1;
    }
  }

  function drawJourney(g, number) { // the hovered wave on all stages, joined
    let before = null;
    g.strokeStyle = theme.ink; g.lineWidth = 2;
    rows.forEach((row, i) => {
      for (const wave of row.waves) {
        if (wave[WAVE] !== number) continue;
        const { x, y, w, h } = boxOf(wave, rowTop(i));
        g.beginPath(); g.roundRect(x, y, Math.max(2, w), h, w > 10 ? 3 : 0); g.stroke();
        if (before) {
          g.globalAlpha = 0.7; g.lineWidth = 1.5; g.beginPath(); g.moveTo(before.x, before.y);
          const bend = (y - before.y) * 0.9 + 6;
          g.bezierCurveTo(before.x, before.y + bend, x, y - bend, x, y); g.stroke();
          g.globalAlpha = 1; g.lineWidth = 2;
        }
        before = { x: x + w, y: y + h };
        break;
      }
    });
    g.lineWidth = 1;
  }

  function drawLabels(g) {
    g.textAlign = "left";
    if (ROUNDS) { g.fillStyle = theme.soft; g.font = "12px system-ui, sans-serif"; g.fillText("rounds", 2, AXIS + ROUNDS / 2 - 1); }
    if (lanes) {
      g.fillStyle = theme.soft; g.font = "12px system-ui, sans-serif";
      g.fillText("admission", 2, AXIS + ROUNDS + Math.min(10, waitArea / 2));
      if (waitArea > 32) g.fillText("and waits", 2, AXIS + ROUNDS + 25);
    }
    rows.forEach((row, i) => {
      const y = rowTop(i) + ROW / 2;
      g.fillStyle = theme.ink; g.font = "600 13px system-ui, sans-serif"; g.fillText(row.name, 2, y - 9);
      g.fillStyle = theme.soft; g.font = "12px system-ui, sans-serif"; g.fillText(`${percent(row.idle)} idle`, 2, y + 9);
    });
  }

  function drawOverview() {
    const h = rows.length * (OVERVIEW_ROW + 2) + 6, g = prepare(overview, h), w = overview.clientWidth - GUTTER;
    rows.forEach((row, i) => {
      g.fillStyle = theme.idle; g.fillRect(GUTTER, 3 + i * (OVERVIEW_ROW + 2), w, OVERVIEW_ROW);
      for (const wave of row.waves) {
        g.fillStyle = requests[wave[SPANS][0]]?.color ?? theme.soft;
        g.fillRect(GUTTER + (wave[START] / total) * w, 3 + i * (OVERVIEW_ROW + 2), Math.max(0.3, (wave[LENGTH] / total) * w), OVERVIEW_ROW);
      }
    });
    const left = GUTTER + (view.from / total) * w, right = GUTTER + (view.to / total) * w;
    g.fillStyle = theme.panel; g.globalAlpha = 0.72;
    g.fillRect(GUTTER, 0, left - GUTTER, h); g.fillRect(right, 0, GUTTER + w - right, h);
    g.globalAlpha = 1; g.strokeStyle = theme.accent; g.lineWidth = 1.5;
    g.beginPath(); g.roundRect(left + 0.75, 0.75, Math.max(3, right - left - 1.5), h - 1.5, 3); g.stroke();
    g.fillStyle = theme.soft; g.font = "12px system-ui, sans-serif"; g.textBaseline = "middle"; g.fillText("overview", 2, h / 2);
  }

  // ---- looking closer ---------------------------------------------------------------------------------------------
  function show(from, to) {
    const span = Math.min(total, Math.max(to - from, Math.max(total * 1e-6, 5)));
    view.from = Math.min(Math.max(0, from), total - span);
    view.to = view.from + span;
    redraw();
  }
  function zoom(factor, around = (view.from + view.to) / 2) {
    const span = (view.to - view.from) * factor, share = (around - view.from) / (view.to - view.from);
    show(around - span * share, around + span * (1 - share));
  }
  function setFocus(index) {
    focus = focus === index ? -1 : index;
    for (const chip of document.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", String(Number(chip.dataset.index) === focus));
    redraw();
  }
  function hit(x, y) {
    if (x < GUTTER) return null;
    const t = tOf(x), slack = 2 / scale();
    for (let i = 0; i < rows.length; i++) {
      const top = rowTop(i);
      if (y < top || y > top + ROW) continue;
      let best = null;
      for (let k = firstVisible(rows[i], t); k < rows[i].waves.length && rows[i].waves[k][START] <= t + slack; k++) {
        const wave = rows[i].waves[k];
        if (wave[START] + wave[LENGTH] >= t - slack) best = wave;
      }
      if (!best) return { row: rows[i], idleAt: t };
      const { y: boxTop, h } = boxOf(best, top), sum = Math.max(1, tokensOf(best));
      let at = boxTop, request = best[SPANS][0] ?? -1;
      for (let k = 0; k < best[SPANS].length; k += 3) {
        if (y >= at) request = best[SPANS][k];
        at += (h * best[SPANS][k + 2]) / sum;
      }
      return { row: rows[i], wave: best, request };
    }
    const lane = Math.floor((y - AXIS - ROUNDS - 1) / laneHeight);
    const waiting = arrivals.find((r) => r.lane === lane && r.announced <= t + slack && waitEnd(r) >= t - slack * 2);
    return waiting ? { waiting, request: waiting.index } : null;
  }
  function describe(found) {
    tip.replaceChildren();
    const line = (text, css = "soft") => tip.append(element("div", { class: css }, text));
    if (found.wave) {
      const w = found.wave, spans = w[SPANS];
      tip.append(element("b", {}, `${w[DECODE] ? "Decode" : "Prefill"} wave ${w[WAVE]}`));
      line(`${found.row.name} · slot ${w[SLOT]} · ${time(w[LENGTH])} from ${time(w[START], 6)}`);
      for (let k = 0; k < Math.min(spans.length, 36); k += 3) {
        const r = requests[spans[k]], row = element("div", { class: "row" }, dot(r.color), r.name);
        if (!w[DECODE]) row.append(element("em", {}, `${count(spans[k + 1])} – ${count(spans[k + 1] + spans[k + 2])} (${count(spans[k + 2])})`));
        tip.append(row);
      }
      if (spans.length > 36) line(`and ${spans.length / 3 - 12} more`);
      if (!w[DECODE] && spans.length > 3) line(`${count(tokensOf(w))} tokens`);
    } else if (found.waiting) {
      const r = found.waiting;
      tip.append(element("div", { class: "row" }, dot(r.color), element("b", {}, r.name)));
      line(`announced ${time(r.announced, 6)}`);
      line(`${r.verdict || "ended"} after ${time(r.ended - r.announced)}${r.verdict === "refused" ? "" : ` at position ${count(Math.max(0, r.endpoint))}`}`);
      if (r.firstSpan >= 0) line(`first span after ${time(r.firstSpan - r.announced)}`);
    } else {
      const gap = found.row.gaps[firstGap(found.row, found.idleAt)];
      tip.append(element("b", {}, `${found.row.name} idle`));
      if (!gap || gap[START] > found.idleAt) { line("before the first request or after the last wave"); return; }
      const cause = causes[gap[CAUSE]];
      line(`${time(gap[LENGTH])} from ${time(gap[START], 6)}`);
      line(cause.meaning || cause.name, "");
    }
  }
  function showTip(event, found) {
    if (!found) { tip.hidden = true; return; }
    describe(found);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 16, window.innerWidth - box.width - 12))}px`;
    tip.style.top = `${event.clientY + 18 + box.height > window.innerHeight ? Math.max(8, event.clientY - box.height - 12) : event.clientY + 18}px`;
  }

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = ((event.deltaX || event.deltaY) / scale());
      show(view.from + move, view.to + move);
    } else {
      zoom(Math.exp(event.deltaY * 0.0016), tOf(Math.max(GUTTER, event.offsetX)));
    }
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const move = (drag.x - event.offsetX) / scale();
      if (Math.abs(drag.x - event.offsetX) > 3) drag.moved = true;
      if (drag.moved) { canvas.classList.add("dragging"); tip.hidden = true; show(drag.from + move, drag.to + move); }
      return;
    }
    const found = hit(event.offsetX, event.offsetY);
    if (found?.wave !== hover?.wave) { hover = found; redraw(); }
    showTip(event, found);
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag?.moved;
    drag = null;
    canvas.classList.remove("dragging");
    if (moved) return;
    const found = hit(event.offsetX, event.offsetY);
    if (found && found.request >= 0) setFocus(found.request); else if (focus >= 0) setFocus(focus);
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; if (hover) { hover = null; redraw(); } });
  canvas.addEventListener("dblclick", () => show(0, total));
  const slide = (event) => {
    const t = ((event.offsetX - GUTTER) / (overview.clientWidth - GUTTER)) * total, half = (view.to - view.from) / 2;
    show(t - half, t + half);
  };
  overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); slide(event); });
  overview.addEventListener("pointermove", (event) => { if (event.buttons) slide(event); });
  window.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (view.to - view.from) / 8;
    const act = {
      "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), 0: () => show(0, total),
      ArrowLeft: () => show(view.from - step, view.to - step), ArrowRight: () => show(view.from + step, view.to + step),
      Escape: () => { if (focus >= 0) setFocus(focus); },
    }[event.key];
    if (act) { act(); event.preventDefault(); }
  });
  byId("zoom-in").onclick = () => zoom(0.6);
  byId("zoom-out").onclick = () => zoom(1 / 0.6);
  byId("reset").onclick = () => show(0, total);
  byId("theme").onclick = () => {
    const root = document.documentElement, dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = (root.dataset.theme ?? (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
    restyle();
  };

  // ---- around the picture -----------------------------------------------------------------------------------------
  function drawKey() {
    const samples = [
      ["prefill wave, one colour per request", (g) => { g.fillStyle = colorOf(0); g.fillRect(0, 0, 34, 16); }],
      ["several requests in one wave, by tokens", (g) => { [[0, 0, 8], [4, 8, 5], [2, 13, 3]].forEach(([c, y, h]) => { g.fillStyle = colorOf(c); g.fillRect(0, y, 34, h); }); }],
      ["decode wave", (g) => { g.fillStyle = colorOf(1); g.fillRect(0, 3, 34, 10); g.fillStyle = theme.decode; g.fillRect(0, 3, 34, 10); }],
    ];
    causes.forEach((cause, index) => {
      if (!cause.fill || !rows.some((row) => row.why[index] > 0)) return;
      samples.push([`idle, ${cause.meaning}`, (g) => { g.fillStyle = cause.fill; g.fillRect(0, 0, 34, 16); }]);
    });
    if (lanes) samples.push(["in admission, then waiting for the first wave", (g) => {
      g.fillStyle = colorOf(3); g.fillRect(0, 5, 34, 6); g.fillStyle = theme.wait; g.fillRect(0, 5, 16, 6); g.fillStyle = theme.ink; g.fillRect(16, 3, 1.5, 10);
    }]);
    byId("key").replaceChildren(...samples.map(([text, paint]) => {
      const sample = element("canvas"), ratio = window.devicePixelRatio || 1;
      sample.width = 34 * ratio; sample.height = 16 * ratio;
      const g = sample.getContext("2d"); g.scale(ratio, ratio); paint(g);
      return element("span", {}, sample, text);
    }));
  }
  function fillTexts() {
    const first = rows[0] ?? { waves: [], prefill: 0, shared: 0, tokens: 0 };
    const reused = requests.reduce((sum, r) => sum + Math.max(0, r.endpoint >= 0 ? r.endpoint : r.position), 0);
    const idle = rows.length ? rows.reduce((sum, r) => sum + r.idle, 0) / rows.length : 0;
    byId("subtitle").textContent = `${rows.length} ${rows.length === 1 ? "rank" : "ranks"} · ${count(requests.length)} requests · ${time(data.duration, 4)}`;
    const tiles = [
      [count(first.prefill), "prefill waves"], [count(first.shared), "of them with several requests"],
      [count(first.waves.length - first.prefill), "decode waves"], [count(first.tokens), "prompt tokens computed"],
      [count(reused), "prompt tokens reused"], [percent(idle), "mean stage idle"],
    ];
    byId("tiles").replaceChildren(...tiles.map(([value, name]) => element("div", { class: "tile" }, element("b", {}, value), element("span", {}, name))));
    byId("legend").replaceChildren(...requests.slice(0, 400).map((r) => {
      const chip = element("button", { class: "chip", "data-index": r.index, "aria-pressed": "false", title: r.rid }, dot(r.color), r.name);
      chip.onclick = () => setFocus(r.index);
      return chip;
    }), ...(requests.length > 400 ? [`and ${count(requests.length - 400)} more`] : []));
    const table = (id, head, body) => byId(id).replaceChildren(
      element("thead", {}, element("tr", {}, ...head.map((h) => element("th", { scope: "col" }, h)))),
      element("tbody", {}, ...body.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, ...[cell].flat()))))),
    );
    const reasons = causes.map((cause, index) => ({ ...cause, index })).filter(({ index }) => rows.some((r) => r.why[index] > 0));
    const heads = ["Stage", "Prefill waves", "Decode waves", "Prompt tokens", "Busy", "Idle", ...reasons.map(({ name }) => name), ""];
    table("stages", heads, rows.map((r) => {
      const meter = element("meter", { min: 0, max: 1, value: 1 - r.idle });
      const parts = reasons.map(({ index }) => (r.to > r.from ? percent(r.why[index] / (r.to - r.from)) : "–"));
      return [r.name, count(r.prefill), count(r.waves.length - r.prefill), count(r.tokens), time(r.busy, 4), percent(r.idle), ...parts, [meter]];
    }));
    const known = (value, text) => (value >= 0 ? text : "–");
    table("requests", ["Request", "Announced", "In admission", "To first span", "Reused", "Computed", "Spans", "Decode waves", "Last forward ends"],
      requests.slice(0, 1000).map((r) => [
        [dot(r.color), r.rid], known(r.announced, time(r.announced, 5)), known(r.announced, time(r.ended - r.announced)),
        known(Math.min(r.announced, r.firstSpan), time(r.firstSpan - r.announced)), known(Math.max(r.position, r.endpoint), count(Math.max(r.position, r.endpoint))),
        count(r.computed), count(r.spans), count(r.decoded), known(r.last, time(r.last, 5)),
      ]));
  }
  function restyle() { readTheme(); drawKey(); redraw(); }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  new ResizeObserver(redraw).observe(canvas);
  fillTexts();
  restyle();
})();
