"""VITS (Kim et al. 2021, arXiv 2106.06103): end-to-end text-to-speech, one file a component of the paper.

Alphabet: B batch, L text positions, T frames, S samples, C channels, F bins of the linear spectrogram, M mel bins,
G speaker channels, H heads, K head dim. All arrays are channels-last. Modules hold float32 parameters only; dropout
keys and noise are arguments.
"""
