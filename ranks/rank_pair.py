"""Two rank actors on Ray with their control links: started, replaced by rank, stopped.

Ray places the processes and restarts them; who is alive is learnt from our own sockets. Must never signal a process
that is not one of its ranks. Source: DESIGN section 4, "Ray places and restarts the ranks".
"""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from torch._C._distributed_c10d import TCPStore

from ranks.errors import BAD_DATA, UNAVAILABLE, USAGE, UserError
from ranks.link import ControlLink, FramedSocket, LinkClosed, listening_socket
from ranks.process_identity import is_alive
from ranks.process_reaper import reap
from ranks.profiles import profile_named
from ranks.rank_actor import RankActor
from ranks.rank_settings import RankSettings
from ranks.ray_session import RaySession
from ranks.records import Attestation, DraftMode, StopReceipt
from ranks.round_plan import BeginEpoch, Hello, Stop
from ranks.timeout_ladder import TimeoutLadder
from ranks.weights import WeightsError, load_weights

__all__ = ["RankPair"]

_DRIVER = 2
_STOP_WAIT_S = 10.0
# A rank connects when it is loaded and greets at once; a stranger that says nothing must not hold up the ranks.
_HELLO_WAIT_MS = 10_000


class RankPair:
    """Both ranks of one arm; `links` and `attestations` always speak of the current incarnations."""

    def __init__(
        self,
        session: RaySession,
        profile_name: str,
        weights_path: Path,
        draft_mode: DraftMode,
        depth: int,
        slot_count: int,
        ladder: TimeoutLadder,
        control_port: int,
        link_faults: tuple[str, str],
        backend: Literal["socket", "gloo", "nccl"] | None,
    ) -> None:
        """Start both ranks and wait for their hello. Raises UserError."""
        if not 1 <= depth <= 8:
            raise UserError(f"depth is {depth}, must be from 1 to 8", USAGE)
        self.draft_mode, self.depth, self.ladder = draft_mode, depth, ladder
        self._session = session
        self._profile = profile_named(profile_name)
        self._weights_path = weights_path.resolve()
        self._slot_count = slot_count
        self._link_faults = link_faults
        self._backend = backend if backend is not None else self._profile.backend
        try:
            weights = load_weights(self._weights_path)
        except WeightsError as error:
            raise UserError(str(error), BAD_DATA) from error
        self._weights_digest = weights.weights_digest
        self.max_position = weights.config.max_position
        try:
            self._listener = listening_socket(session.host, control_port, 2)
        except OSError as error:
            raise UserError(
                f"control port {control_port} on {session.host} cannot be used ({error.strerror}); "
                "choose a free port, or 0 for any",
                UNAVAILABLE,
            ) from error
        self._store = TCPStore(session.host, 0, None, True, wait_for_workers=False)
        self._stopped: StopReceipt | None = None
        self._ever: list[tuple[int, int]] = []
        self._known: dict[int, Attestation] = {}
        self.links: dict[int, ControlLink] = {}
        self._incarnations = [0, 0]
        self._served: list[Any] = [None, None]
        try:
            self._actors = self._place()
            self._start((0, 1))
        except BaseException:
            self.stop()
            raise

    @property
    def attestations(self) -> tuple[Attestation, Attestation]:
        """What both current processes said of themselves."""
        return self._known[0], self._known[1]

    def sockets(self) -> list[FramedSocket]:
        """Return both links' sockets for polling."""
        return [link.framed for link in self.links.values()]

    def ranks_of(self, ready: Iterable[FramedSocket]) -> list[int]:
        """Return which ranks' links are among the ready sockets."""
        chosen = list(ready)
        return [rank for rank, link in self.links.items() if link.framed in chosen]

    def epoch_messages(self, epoch: int) -> tuple[BeginEpoch, BeginEpoch]:
        """Return the message that opens an epoch, for rank 0 and rank 1; its store prefix is never used again."""
        first, second = self._incarnations
        message = BeginEpoch(epoch, (first, second), self._store.port, f"epoch-{epoch}")
        return message, message

    def replace(self, ranks: Iterable[int]) -> None:
        """End the named ranks' processes if they still run, and start new incarnations of them. Raises UserError."""
        named = tuple(ranks)
        for rank in named:
            self.links.pop(rank).close()
            self._kill(self._known[rank])
        if named:
            self._start(named)

    def stop(self) -> StopReceipt:
        """Ask both ranks to stop, wait, and kill what is left; returns who was stopped and who survived."""
        if self._stopped is not None:
            return self._stopped
        for link in self.links.values():
            try:
                link.send(Stop())
            except LinkClosed:
                continue
        self._await_end()
        self._forget_actors()
        for link in self.links.values():
            link.close()
        self._listener.close()
        survivors = tuple(pid for pid, ticks in self._ever if is_alive(pid, ticks))
        self._stopped = StopReceipt(tuple(pid for pid, _ in self._ever), survivors)
        return self._stopped

    # -- starting ------------------------------------------------------------------------------------------

    def _place(self) -> list[Any]:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        profile = self._profile
        bundle = {"CPU": profile.cpus_per_rank}
        if profile.gpus_per_rank:
            bundle["GPU"] = profile.gpus_per_rank
        self._group = placement_group([dict(bundle), dict(bundle)], strategy=profile.placement_strategy)
        if not self._group.wait(self.ladder.ray_get_timeout_ms / 1000):
            raise UserError(f"Ray cannot place two ranks of profile {profile.name}: {bundle} twice", UNAVAILABLE)
        remote = ray.remote(RankActor)
        return [
            remote.options(
                num_cpus=profile.cpus_per_rank,
                num_gpus=profile.gpus_per_rank,
                max_restarts=-1,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, rank),
            ).remote()
            for rank in (0, 1)
        ]

    def _start(self, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            self._incarnations[rank] = secrets.randbits(63) | 1
            self._served[rank] = self._actors[rank].serve.remote(self._settings(rank).model_dump_json())
        waiting = set(ranks)
        deadline = time.monotonic() + self.ladder.ray_get_timeout_ms / 1000
        while waiting:
            rank, link, attestation = self._accept(waiting, deadline)
            waiting.discard(rank)
            self.links[rank] = link
            self._known[rank] = attestation
            # On two machines a pid says nothing here; Ray's own answer to `serve` is then all there is.
            if self._profile.node_count == 1:
                self._ever.append((attestation.pid, attestation.process_start_ticks))
                self._session.watch(attestation.pid)

    def _settings(self, rank: int) -> RankSettings:
        return RankSettings(
            rank=1 if rank else 0,
            profile=self._profile.name,
            device=self._profile.device,
            backend=self._backend,
            draft_mode=self.draft_mode,
            depth=self.depth,
            exchange="candidates",
            weights_path=str(self._weights_path),
            weights_digest=self._weights_digest,
            slot_count=self._slot_count,
            ladder=self.ladder,
            driver_host=self._session.host,
            driver_port=self._listener.getsockname()[1],
            incarnation=self._incarnations[rank],
            link_faults=self._link_faults[0],
            link_faults_argument=self._link_faults[1],
        )

    def _accept(self, waiting: set[int], deadline: float) -> tuple[int, ControlLink, Attestation]:
        """Return the next waiting rank that connected and said hello under its incarnation."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise UserError(f"ranks {sorted(waiting)} did not come up in time", UNAVAILABLE)
            if not select.select([self._listener], [], [], min(left, 0.25))[0]:
                self._raise_if_served(waiting)
                continue
            connected, _ = self._listener.accept()
            hello = self._greet(connected, waiting)
            if hello is not None:
                return hello

    def _greet(self, connected: socket.socket, waiting: set[int]) -> tuple[int, ControlLink, Attestation] | None:
        """Return the rank behind a connection, or close it when it is none of ours."""
        link = ControlLink(FramedSocket(connected), _DRIVER, 0)
        try:
            messages = link.receive() if link.framed.readable(_HELLO_WAIT_MS) else []
        except LinkClosed:
            messages = []
        if len(messages) == 1 and isinstance(messages[0], Hello):
            attestation = messages[0].attestation
            expected = f"{self._incarnations[attestation.rank]:016x}"
            if attestation.rank in waiting and attestation.incarnation == expected:
                return attestation.rank, link, attestation
        link.close()
        return None

    def _raise_if_served(self, waiting: set[int]) -> None:
        """Turn the early end of a rank that should come up into one sentence; a death is left to Ray's restart."""
        import ray

        for rank in sorted(waiting):
            done, _ = ray.wait([self._served[rank]], timeout=0)
            if not done:
                continue
            try:
                ray.get(self._served[rank])
            except ray.exceptions.RayTaskError as error:
                cause = error.cause if error.cause is not None else error
                raise UserError(f"rank {rank} did not start: {cause}", UNAVAILABLE) from error
            except ray.exceptions.RayActorError:
                self._served[rank] = self._actors[rank].serve.remote(self._settings(rank).model_dump_json())

    # -- ending --------------------------------------------------------------------------------------------

    def _kill(self, attestation: Attestation) -> None:
        if self._profile.node_count > 1:
            import ray

            ray.kill(self._actors[attestation.rank], no_restart=False)
        else:
            reap({attestation.pid: attestation.process_start_ticks}, "")

    def _await_end(self) -> None:
        """Wait for the end of `serve` on every rank that said hello, then for Ray to let the processes go."""
        import ray

        running = [self._served[rank] for rank in self.links if self._served[rank] is not None]
        if running and ray.is_initialized() and self._session.healthy:
            ray.wait(running, num_returns=len(running), timeout=_STOP_WAIT_S)

    def _forget_actors(self) -> None:
        import ray

        if ray.is_initialized() and self._session.healthy:
            for actor in getattr(self, "_actors", []):
                ray.kill(actor)
            if hasattr(self, "_group"):
                ray.util.remove_placement_group(self._group)
        deadline = time.monotonic() + _STOP_WAIT_S
        while any(is_alive(pid, ticks) for pid, ticks in self._ever):
            if time.monotonic() > deadline:
                reap(dict(self._ever), "")
                return
            time.sleep(0.01)
