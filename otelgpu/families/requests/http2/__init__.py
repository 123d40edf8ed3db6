"""HTTP/2 at both ends, and gRPC on it: ``parser`` has the streams, ``frames`` and ``hpack_reader`` the bytes."""
