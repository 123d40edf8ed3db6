"""HTTP/1.1 at both ends: ``parser`` pairs requests with responses, ``framing`` finds messages in bytes."""
