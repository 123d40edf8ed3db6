"""HTTP/2 at clients and servers, and gRPC: ``parser`` has the streams, ``frames`` and ``hpack_reader`` the bytes."""
