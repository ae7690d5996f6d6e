"""Messages between processes over ZeroMQ: frames, endpoints with deadlines and bounds, keys."""
