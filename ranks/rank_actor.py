"""The Ray actor that is one rank: loads its shard, connects to the driver, serves until told to stop.

Ray places it and starts it again after a death; everything else goes over our own sockets. Must never pass
frames, q or tokens through Ray. Source: DESIGN section 4, "Ray places and restarts the ranks".
"""

from __future__ import annotations

import os
import platform
import time
from importlib import import_module
from pathlib import Path

import torch

from ranks.draw_depth import law_id_of
from ranks.epoch_collective import make_collective
from ranks.errors import USAGE, UserError
from ranks.frames import ABI_MARKER
from ranks.lifeline import Lifeline
from ranks.link import ControlLink, FramedSocket, FrameFilter, connect
from ranks.model_config import ModelConfig
from ranks.process_identity import process_start_ticks, source_digest
from ranks.profiles import profile_named
from ranks.rank_host import RankHost
from ranks.rank_settings import RankSettings
from ranks.records import Attestation
from ranks.row_probe import products_are_row_invariant
from ranks.shard_engine import ShardEngine
from ranks.target_probe import measured_target_policy
from ranks.weights import load_weights

__all__ = ["RankActor"]


class RankActor:
    """One rank's process; `serve` blocks until the driver says stop or is gone."""

    def process(self) -> tuple[int, int]:
        """Return (pid, start ticks) of this process."""
        return _own_identity()

    def serve(self, settings_json: str) -> str:
        """Serve one driver with the settings given as JSON; returns "stopped".

        Raises WeightsError, LinkClosed, and what the engine raises while it is built.
        """
        settings = RankSettings.model_validate_json(settings_json)
        profile = profile_named(settings.profile)
        torch.set_num_threads(profile.torch_threads)
        weights = load_weights(Path(settings.weights_path))
        collective = make_collective(settings.rank, settings.backend)
        engine = ShardEngine(
            weights.config, weights, settings.rank, collective, settings.slot_count + 1, settings.device
        )
        connected = connect(settings.driver_host, settings.driver_port, settings.ladder.ray_get_timeout_ms)
        control = ControlLink(FramedSocket(connected), settings.rank, settings.incarnation)
        lifeline = Lifeline(connected)
        lifeline.start()
        host = RankHost(
            settings,
            _attest(settings, engine, weights.config),
            engine,
            collective,
            control,
            _link_filter(settings),
            time.monotonic_ns,
        )
        try:
            host.serve()
        finally:
            lifeline.release()
            control.close()
        return "stopped"


def _own_identity() -> tuple[int, int]:
    pid = os.getpid()
    start_ticks = process_start_ticks(pid)
    if start_ticks is None:
        raise RuntimeError("this process has no /proc entry; ranks need Linux")
    return pid, start_ticks


def _attest(settings: RankSettings, engine: ShardEngine, config: ModelConfig) -> Attestation:
    pid, start_ticks = _own_identity()
    temperature, top_p = measured_target_policy()
    return Attestation(
        rank=settings.rank,
        pid=pid,
        process_start_ticks=start_ticks,
        incarnation=f"{settings.incarnation:016x}",
        weights_digest=engine.weights_digest,
        ngram_memory_digest=engine.ngram_memory_digest,
        source_digest=source_digest(),
        law_id=law_id_of(settings.draft_mode),
        abi_marker=ABI_MARKER,
        sampled_drafts=settings.draft_mode == "sampled",
        depth=settings.depth,
        profile=settings.profile,
        device=settings.device,
        python_version=platform.python_version(),
        torch_version=torch.__version__,
        target_temperature=temperature,
        target_top_p=top_p,
        row_invariant=products_are_row_invariant(_probe_shapes(config), settings.device),
    )


def _probe_shapes(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    half_mlp, half_heads = config.mlp_width // 2, config.head_count * config.head_width // 2
    return (
        (config.model_width, half_mlp),
        (half_mlp, config.model_width),
        (config.model_width, half_heads),
        (half_heads, config.model_width),
        (config.model_width, config.shard_vocabulary),
    )


def _link_filter(settings: RankSettings) -> FrameFilter | None:
    """Return the outgoing frame filter that MODULE:OBJECT makes for this rank, None when no faults are wanted."""
    if not settings.link_faults:
        return None
    module_name, separator, name = settings.link_faults.partition(":")
    if not separator:
        raise UserError(f"link_faults is {settings.link_faults!r}, must be MODULE:OBJECT", USAGE)
    made: FrameFilter = getattr(import_module(module_name), name)(settings.rank, settings.link_faults_argument)
    return made
