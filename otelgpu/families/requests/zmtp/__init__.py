"""ZMTP, the protocol of ZeroMQ: ``frames`` finds messages in bytes, ``parser`` hands them to ``engines``."""
