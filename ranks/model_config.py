"""Shape of the embedded model: every number that decides a logit, typed and without defaults.

Must never hold weights or a device. The same record travels in the metadata of the weights file.
Source: DESIGN section 4, last item; n-gram memory after the published conditional-memory layers.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["WORLD_SIZE", "DrafterConfig", "MemoryConfig", "ModelConfig", "embedded_v1_config"]

WORLD_SIZE = 2
VECTOR_LANES = 32

PositiveInt = Annotated[int, Field(gt=0)]


class MemoryConfig(BaseModel):
    """Hashed n-gram memory: head h looks up n-grams of order `orders[h % len(orders)]`.

    `multipliers[h]` holds one odd factor a token of the n-gram, current token first.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    layer: Annotated[int, Field(ge=0)]
    orders: tuple[Annotated[int, Field(ge=2, le=3)], ...]
    head_count: PositiveInt
    rows_per_head: PositiveInt
    head_width: PositiveInt
    hash_shift: Annotated[int, Field(ge=0, le=32)]
    multipliers: tuple[tuple[PositiveInt, ...], ...]

    def order_of(self, head: int) -> int:
        """Return how many tokens, current one included, head `head` hashes."""
        return self.orders[head % len(self.orders)]

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        if self.rows_per_head & (self.rows_per_head - 1):
            raise ValueError(f"memory.rows_per_head is {self.rows_per_head}; it must be a power of two")
        if self.head_count % (WORLD_SIZE * len(self.orders)):
            raise ValueError("memory.head_count must give every rank the same number of heads of every order")
        wanted = [self.order_of(head) for head in range(self.head_count)]
        if [len(factors) for factors in self.multipliers] != wanted:
            raise ValueError(f"memory.multipliers must hold one tuple a head, of lengths {wanted}")
        return self


class DrafterConfig(BaseModel):
    """Parallel draft backbone and its low-rank Markov head.

    `grid_bits`: draft logits are multiples of 2**-grid_bits. `markov_scale_bits`: the Markov bias
    is the integer dot of two int8 rows times 2**-markov_scale_bits.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    max_depth: PositiveInt
    block_count: PositiveInt
    mlp_width: PositiveInt
    markov_rank: PositiveInt
    markov_scale_bits: PositiveInt
    grid_bits: PositiveInt

    @model_validator(mode="after")
    def _exact_in_fp32(self) -> Self:
        if self.markov_rank * 127 * 127 >= 1 << 24:
            raise ValueError("drafter.markov_rank is so large that the int8 dot is not exact in fp32")
        if self.markov_scale_bits > self.grid_bits:
            raise ValueError("drafter.markov_scale_bits must not exceed drafter.grid_bits")
        return self


class ModelConfig(BaseModel):
    """The embedded decoder: sizes, window, position slopes, memory and drafter.

    Head h adds -(2**-slope_exponents[h]) * distance to its scores; nothing else depends on position.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    layout: Literal["specbed-embedded-v1"]
    vocabulary_size: PositiveInt
    model_width: PositiveInt
    layer_count: PositiveInt
    head_count: PositiveInt
    head_width: PositiveInt
    mlp_width: PositiveInt
    window_size: PositiveInt
    max_position: PositiveInt
    slope_exponents: tuple[Annotated[int, Field(ge=0, le=20)], ...]
    embedding_scale: Annotated[float, Field(gt=0)]
    norm_epsilon: Annotated[float, Field(gt=0)]
    end_token_id: Annotated[int, Field(ge=0)]
    memory: MemoryConfig
    drafter: DrafterConfig

    @property
    def shard_vocabulary(self) -> int:
        """Vocabulary entries a rank holds."""
        return self.vocabulary_size // WORLD_SIZE

    @property
    def shard_heads(self) -> int:
        """Attention heads a rank holds."""
        return self.head_count // WORLD_SIZE

    @property
    def shard_memory_heads(self) -> int:
        """N-gram memory heads a rank holds."""
        return self.memory.head_count // WORLD_SIZE

    @property
    def memory_width(self) -> int:
        """Width of all memory heads side by side."""
        return self.memory.head_count * self.memory.head_width

    @model_validator(mode="after")
    def _shards_evenly(self) -> Self:
        widths = {
            "vocabulary_size": self.vocabulary_size,
            "model_width": self.model_width,
            "head_count * head_width": self.head_count * self.head_width,
            "mlp_width": self.mlp_width,
            "drafter.mlp_width": self.drafter.mlp_width,
            "memory width": self.memory_width,
        }
        for name, width in widths.items():
            if width % (WORLD_SIZE * VECTOR_LANES):
                raise ValueError(f"{name} is {width}; it must be a multiple of {WORLD_SIZE * VECTOR_LANES}")
        if self.head_count % WORLD_SIZE or len(self.slope_exponents) != self.head_count:
            raise ValueError("head_count must be even, with one slope exponent a head")
        if self.memory.layer >= self.layer_count:
            raise ValueError(f"memory.layer is {self.memory.layer}; it must be below {self.layer_count}")
        if self.end_token_id >= self.vocabulary_size:
            raise ValueError(f"end_token_id is {self.end_token_id}; it must be below {self.vocabulary_size}")
        return self


def _multiplier(head: int, offset: int) -> int:
    digest = hashlib.blake2b(f"specbed ngram head {head} token {offset}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1 | 1


def embedded_v1_config() -> ModelConfig:
    """Return the configuration of the model that ships with the bed."""
    orders = (2, 3)
    head_count = 8
    return ModelConfig(
        layout="specbed-embedded-v1",
        vocabulary_size=4096,
        model_width=192,
        layer_count=4,
        head_count=6,
        head_width=32,
        mlp_width=512,
        window_size=256,
        max_position=163_840,
        slope_exponents=(1, 3, 6, 2, 4, 9),
        embedding_scale=16.0,
        norm_epsilon=1e-5,
        end_token_id=0,
        memory=MemoryConfig(
            layer=1,
            orders=orders,
            head_count=head_count,
            rows_per_head=8192,
            head_width=16,
            hash_shift=15,
            multipliers=tuple(
                tuple(_multiplier(head, offset) for offset in range(orders[head % len(orders)]))
                for head in range(head_count)
            ),
        ),
        drafter=DrafterConfig(
            max_depth=8, block_count=2, mlp_width=512, markov_rank=64, markov_scale_bits=12, grid_bits=14
        ),
    )
