"""HTTP/1.1 at clients and servers: ``parser`` pairs requests with responses, ``framing`` finds messages in bytes."""
