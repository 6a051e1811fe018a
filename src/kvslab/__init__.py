"""kvslab: what one KV-cache block costs, exactly."""
