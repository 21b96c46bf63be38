"""Gradients as fewer bytes, for a wire that is slower than the workers.

A compression is a description. For a slice of the gradient it makes an encoder, which a worker has, and a decoder,
which the receiver has:

    compression = build("topk:share=0.01", COMPRESSIONS, "compression")
    encoder, decoder = compression.encoder(size, dtype, seed), compression.decoder(size, dtype)
    connection.sendmsg(encoder.encode(gradient, clock))
    squared_norm = decoder.decode(received, into)

Nothing but numbers crosses: no header, no pickle. Both sides make the same compression of the same text, the same size
and the same dtype; the transport says how many bytes a payload has. docs/slow-wires.md says when to take which.
"""

from paceline.training.compression.base import Compression, Decoder, Encoder, PayloadError, UnsendableError
from paceline.training.compression.int8 import Int8
from paceline.training.compression.topk import TopK
from paceline.training.compression.whole import BFloat16, Uncompressed

COMPRESSIONS: dict[str, type[Compression]] = {
    "none": Uncompressed,
    "bf16": BFloat16,
    "int8": Int8,
    "topk": TopK,
}

__all__ = ["COMPRESSIONS", "Compression", "Decoder", "Encoder", "PayloadError", "UnsendableError"]
