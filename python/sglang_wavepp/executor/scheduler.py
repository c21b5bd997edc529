"""SGLang's scheduler with a LOOP of our own.

A subclass, made at run time from the class that SGLang would use. It overrides the places where SGLang's scheduler
decides something per rank; everything else, from building requests to running batches and processing results, is
SGLang's.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.managers.io_struct import RpcReqOutput, sock_send
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler_pp_mixin import DynamicGradMode
from sglang.srt.runtime_context import get_parallel

from sglang_wavepp.executor import control
from sglang_wavepp.executor.assembly import Executor, assemble
from sglang_wavepp.executor.keys import give_key
from sglang_wavepp.executor.streaming import make_wave_streamer
from sglang_wavepp.rank.startup import HandshakeError
from sglang_wavepp.settings.errors import SettingsError

logger = logging.getLogger(__name__)

UNLIMITED = 1 << 30
LOAD_REFRESH_SECONDS = 0.1
"""For so long after a publication of the load, results of prefills publish no other one while there is work."""


def make_wave_scheduler(
    base: type[Any], *, verify: Callable[[], None], fingerprints: Mapping[str, str]
) -> type[Any]:
    """The scheduler class that replaces `base`.

    Args:
        base: SGLang's `Scheduler`.
        verify: raises when a hook that this server needs isn't in place.
        fingerprints: fingerprint of each hook's target, compared between ranks at start-up.
    """

    class WaveScheduler(base):
        """SGLang's scheduler, driven by rank 0's command stream."""

        _executor: Executor | None = None
        _load_published = -math.inf

        def __init__(self, server_args: Any, port_args: Any) -> None:
            verify()
            super().__init__(server_args, port_args)

        # --- the loop -------------------------------------------------------------------------------------------

        @DynamicGradMode()  # type: ignore[untyped-decorator]
        def event_loop_pp(self) -> None:
            """Serve until the server ends."""
            self.init_pp_loop_state()
            try:
                self._executor = assemble(self, fingerprints)
            except (SettingsError, HandshakeError) as refusal:
                # All ranks find it, and the launcher ends with them. A traceback would only hide what is wrong.
                print(f"error: {refusal}", file=sys.stderr, flush=True)
                raise SystemExit(2) from None
            try:
                self._executor.run()
            except BaseException:
                self._executor.close(failed=True)
                raise
            self._executor.close()

        def init_grammar_manager(self) -> None:
            """Each rank compiles its own grammars: rank 0 announces a request when its grammar is ready."""
            super().init_grammar_manager()
            manager = self.grammar_manager
            manager.pp_rank, manager.pp_size, manager.grammar_sync_size = 0, 1, 1
            if get_parallel().pp_rank or get_parallel().tp_rank:
                # Rank 0 decides that a grammar takes too long. Here it was ready on rank 0, and giving up would leave
                # a request that this rank lacks.
                manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = math.inf

        def get_output_streamer_class(self) -> type[Any]:
            """A streamer that hides every request that is mid-prompt."""
            return make_wave_streamer(super().get_output_streamer_class())

        def maybe_sleep_on_idle(self) -> None:
            """The LOOP sleeps in its poller."""

        # --- requests -------------------------------------------------------------------------------------------

        def process_input_requests(self, recv_reqs: list[Any]) -> None:
            """Serve what rank 0 may serve, refuse the rest."""
            served: list[Any] = []
            for request in recv_reqs:
                if control.is_served(request):
                    served.append(request)
                    continue
                logger.error(control.refusal_text(request))
                reply = control.refusal(request)
                if isinstance(reply, RpcReqOutput):
                    sock_send(self.ipc_channels.recv_from_rpc, reply)
                elif reply is not None:
                    self.send_control_output(reply, request)
            super().process_input_requests(served)

        def init_req_max_new_tokens(self, req: Any) -> None:
            """Clip the output by what the pools of all ranks can hold, and no shorter."""
            asked, at_least = req.sampling_params.max_new_tokens, req.sampling_params.min_new_tokens
            super().init_req_max_new_tokens(req)
            executor = self._running_executor()
            if executor.leads:
                asked = UNLIMITED if asked is None else asked
                if (self.max_new_tokens_limit or 0) > 0:
                    asked = min(asked, self.max_new_tokens_limit)
                executor.leader.clip_output(req, asked=asked, at_least=at_least)

        def _create_generation_req(self, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
            req = super()._create_generation_req(recv_req, *args, **kwargs)
            req.wavepp_source = recv_req
            return req

        def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
            """Hand a request to admission instead of to SGLang's own planning."""
            executor = self._running_executor()
            if is_retracted:
                raise RuntimeError(f"request {req.rid} was retracted, which --wavepp never does")
            if not executor.leads:
                give_key(req, req.rid)  # a record carries the key in the place of the id
                executor.installed(req)
                return
            before = len(self.waiting_queue)
            super()._add_request_to_queue(req)
            if len(self.waiting_queue) > before:
                executor.leader.arrive(req)

        def abort_request(self, recv_req: Any) -> None:
            """Abort requests in order with the waves."""
            self._running_executor().leader.abort(recv_req)
            self.grammar_manager.abort_requests(recv_req)

        def flush_cache(self, empty_cache: bool = True) -> bool:
            """Flush every rank's cache, if the server is idle."""
            executor = self._running_executor()
            if not executor.leads or not self.is_fully_idle():
                return bool(super().flush_cache(empty_cache))
            drop = super().flush_cache
            return executor.leader.flush(lambda: bool(drop(empty_cache)))

        # --- what is going on -----------------------------------------------------------------------------------

        def publish_load_snapshot(self, force: bool = False) -> Any:
            """Publish the load of the server, unless that was done a moment ago and there is work.

            SGLang publishes with every result of a prefill, a third of whose time it takes when waves are small, and
            with every so many results of a decode. Here a result of a prefill that follows a publication so soon counts
            as one of a decode.

            Returns:
                What was published, None when nothing was.
            """
            now = time.monotonic()
            if force and now - self._load_published < LOAD_REFRESH_SECONDS and self._executor is not None:
                force = self._executor.is_idle()
            load = super().publish_load_snapshot(force)
            if load is not None:
                self._load_published = now
            return load

        @property
        def running_batch(self) -> Any:
            """All requests that decode, as SGLang's metrics and idle checks want them; nothing is ever run from it."""
            reqs = [] if self._executor is None else self._executor.decoding()
            return ScheduleBatch(reqs=reqs, batch_is_full=False)

        @running_batch.setter
        def running_batch(self, batch: Any) -> None:
            if batch.reqs:
                raise RuntimeError("SGLang's own planning put requests into the running batch")

        def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
            """Whether nothing is in admission, in flight or decoding."""
            if self._executor is not None and not self._executor.is_idle():
                return False
            return bool(super().is_fully_idle(for_health_check, ignore_waiting))

        def _collect_inflight_batches(self) -> list[Any]:
            return self._running_executor().batches()

        def release_host_resources(self) -> None:
            """Close the links, then what SGLang holds."""
            if self._executor is not None:
                self._executor.close()
            super().release_host_resources()

        def _running_executor(self) -> Executor:
            if self._executor is None:
                raise RuntimeError("the executor hasn't started")
            return self._executor

    WaveScheduler.__name__ = WaveScheduler.__qualname__ = "Scheduler"
    return WaveScheduler
