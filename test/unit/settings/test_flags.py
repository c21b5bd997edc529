"""The settings object: defaults, sources, one-line errors."""

from __future__ import annotations

import argparse
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_wavepp.settings.errors import SettingsError
from sglang_wavepp.settings.flags import (
    KEYWORDS,
    WaveSettings,
    add_arguments,
    env_name,
    flag_name,
    from_env,
    from_values,
)
from sglang_wavepp.settings.of import attach, is_decided, settings_of


def test_off_unless_asked() -> None:
    assert from_values({}, {}) is None
    assert from_env({}) is None
    assert from_values({"wavepp": False}, {"SGLANG_WAVEPP": "1"}) is None


def test_defaults() -> None:
    settings = from_values({"wavepp": True}, {})
    assert settings == WaveSettings()
    assert (settings.admission, settings.planner) == ("lease", "mpu")
    assert (settings.pipeline_fills, settings.hint_block_size, settings.rounds_timeout) == (2, 64, 30.0)
    assert settings.max_wave_tokens is None
    assert settings.trace is None


def test_wave_size_follows_the_chunk_size() -> None:
    assert WaveSettings().wave_tokens(512) == 512
    assert WaveSettings(max_wave_tokens=96).wave_tokens(512) == 96
    assert WaveSettings().smallest_wave_tokens(16_384, 64) == 512
    assert WaveSettings().smallest_wave_tokens(1000, 48) == 48
    assert WaveSettings().smallest_wave_tokens(16_000, 64) == 448, "a multiple of the step"
    assert WaveSettings(min_wave_tokens=200).smallest_wave_tokens(16_384, 64) == 192
    assert WaveSettings(min_wave_tokens=1).smallest_wave_tokens(16_384, 64) == 64
    for no_chunks in (None, -1, 0):
        with pytest.raises(SettingsError, match="--wavepp needs a wave size"):
            WaveSettings().wave_tokens(no_chunks)


@pytest.mark.parametrize(
    ("given_values", "text"),
    [
        (
            {"wavepp_admission": "magic"},
            "--wavepp-admission must be one of lease, two-walk, inline, got 'magic'",
        ),
        ({"wavepp_planner": "best"}, "--wavepp-planner must be one of mpu, supply, static, got 'best'"),
        ({"wavepp_max_wave_tokens": "many"}, "--wavepp-max-wave-tokens must be a whole number, got 'many'"),
        ({"wavepp_max_wave_tokens": True}, "--wavepp-max-wave-tokens must be a whole number, got True"),
        ({"wavepp_max_wave_tokens": "0"}, "--wavepp-max-wave-tokens must be at least 1 token, got 0"),
        ({"wavepp_min_wave_tokens": -4}, "--wavepp-min-wave-tokens must be at least 1 token, got -4"),
        (
            {"wavepp_min_wave_tokens": 65, "wavepp_max_wave_tokens": 64},
            "--wavepp-min-wave-tokens (65) must not exceed --wavepp-max-wave-tokens (64)",
        ),
        ({"wavepp_pipeline_fills": "0"}, "--wavepp-pipeline-fills must be at least 1, got 0"),
        (
            {"wavepp_pipeline_fills": "3"},
            "--wavepp-pipeline-fills is read by --wavepp-planner supply alone, not by mpu; leave it out",
        ),
        ({"wavepp_hint_block_size": "1.5"}, "--wavepp-hint-block-size must be a whole number, got '1.5'"),
        ({"wavepp_rounds_timeout": "soon"}, "--wavepp-rounds-timeout must be a number, got 'soon'"),
        (
            {"wavepp_rounds_timeout": "inf"},
            "--wavepp-rounds-timeout must be a positive, finite number, got inf",
        ),
        ({"wavepp_rounds_timeout": "0.2"}, "--wavepp-rounds-timeout must be at least 1 second, got 0.2"),
        ({"wavepp_progress_deadline_ms": "-1"}, "--wavepp-progress-deadline-ms must be a positive"),
        ({"wavepp_decode_reserve": "64"}, "--wavepp-decode-reserve follows in a later release"),
        ({"wavepp_trace": "  "}, "--wavepp-trace must not be empty"),
        ({"wavepp": "perhaps"}, "--wavepp must be 1 or 0, got 'perhaps'"),
        ({"wavepp": None, "wavepp_trace": "t.json"}, "--wavepp-trace needs --wavepp"),
    ],
)
def test_wrong_values_are_one_line(given_values: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        from_values({"wavepp": True, **given_values}, {})
    assert str(refusal.value).startswith(text)
    assert "\n" not in str(refusal.value)
    assert isinstance(refusal.value, ValueError)


def test_environment_fills_what_was_not_given() -> None:
    environ = {
        "SGLANG_WAVEPP": "1",
        "SGLANG_WAVEPP_MAX_WAVE_TOKENS": "128",
        "SGLANG_WAVEPP_TRACE": "env.json",
    }
    settings = from_values({"wavepp_trace": "flag.json"}, environ)
    assert settings == WaveSettings(max_wave_tokens=128, trace="flag.json")


def test_environment_errors_name_the_variable() -> None:
    with pytest.raises(SettingsError, match="^SGLANG_WAVEPP must be 1 or 0, got 'si'"):
        from_env({"SGLANG_WAVEPP": "si"})
    with pytest.raises(SettingsError, match="^SGLANG_WAVEPP_PIPELINE_FILLS must be a whole number"):
        from_env({"SGLANG_WAVEPP": "1", "SGLANG_WAVEPP_PIPELINE_FILLS": "two"})


@given(
    settings=st.builds(
        WaveSettings,
        admission=st.sampled_from(["lease", "two-walk", "inline"]),
        max_wave_tokens=st.none() | st.integers(min_value=1 << 20, max_value=1 << 30),
        min_wave_tokens=st.none() | st.integers(min_value=1, max_value=1 << 20),
        planner=st.just("supply"),
        pipeline_fills=st.integers(min_value=1, max_value=99),
        hint_block_size=st.integers(min_value=1, max_value=4096),
        rounds_timeout=st.floats(min_value=1.0, max_value=1e6),
        progress_deadline_ms=st.floats(min_value=1e-3, max_value=1e6),
        trace=st.none() | st.just("a b.json"),
    )
)
def test_environment_and_flags_carry_every_field(settings: WaveSettings) -> None:
    assert from_env(settings.to_env()) == settings
    assert from_values(settings.as_flags(), {}) == settings


def test_every_field_has_a_flag_with_help() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = parser.format_help()
    for field in fields(WaveSettings):
        assert flag_name(field.name) in text
        assert env_name(field.name).startswith("SGLANG_WAVEPP_")
    parsed = vars(parser.parse_args([]))
    assert set(parsed) == set(KEYWORDS)
    assert set(parsed.values()) == {None}, "a default in the parser would hide the environment"


def test_settings_ride_on_the_arguments() -> None:
    class Arguments:
        pass

    arguments = Arguments()
    assert settings_of(arguments) is None
    assert not is_decided(arguments)
    attach(arguments, None)
    assert is_decided(arguments)
    attach(arguments, WaveSettings(trace="t"))
    assert settings_of(arguments) == WaveSettings(trace="t")
