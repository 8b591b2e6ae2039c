"""Two tensor-parallel ranks: model shards, slots, protocol core, exchange and Ray actors. Imports selector only."""
