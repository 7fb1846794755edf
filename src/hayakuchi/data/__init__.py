"""From corpora to batches: de-duplication, shards, packing and the training stream."""
