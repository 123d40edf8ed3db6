"""WebSocket: ``frames`` and ``permessage_deflate`` read messages, ``realtime`` makes exchanges of some of them."""
