"""What each observed subject knows about itself: decoding and its table of signal names. Pure."""
