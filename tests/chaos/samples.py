"""Which samples each rank takes in each step: a second implementation, from the order in the documents."""
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    """base/prng.h's mix()."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def derive(seed, *rest):
    """base/prng.h's derive()."""
    h = mix(seed + GOLDEN & MASK)
    for word in rest:
        h = mix(h ^ (word + GOLDEN + (h << 6) + (h >> 2) & MASK))
    return h


def place(seed, size, i):
    """train/data.h's Permutation of 0 .. size-1: a Feistel network, walked until it is back in range."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    while True:
        left, right = i >> half, i & ((1 << half) - 1)
        for number in range(6):
            left, right = right, left ^ (derive(seed, number, right) & ((1 << half) - 1))
        i = left << half | right
        if i < size:
            return i


def digest(samples):
    """The digest of samples as in a step's trace line."""
    return sum(mix(i + 1) for i in samples) & MASK


def wrong_samples(made, scenario, seed, size):
    """The first error in the samples of a run that made every step; None: no error.

    `made`: (rank, step) → its lines. In each epoch no sample comes twice over all ranks and steps, what is
    left out is less than a step, and every line has the digest of the samples that are its rank's.
    """
    workers, batch = scenario["workers"], scenario["batch"]
    per_epoch = size // (batch * workers)
    for epoch in range((scenario["steps"] - 1) // per_epoch + 1):
        used = set()
        for index in range(per_epoch):
            step = epoch * per_epoch + index + 1
            for rank in range(workers):
                first = (index * workers + rank) * batch
                samples = [place(derive(seed, epoch), size, first + i) for i in range(batch)]
                used.update(samples)
                for line in made.get((rank, step), ()):
                    if line["samples"] != digest(samples):
                        return f"rank {rank} made step {step} of other samples than {samples}"
        if len(used) != per_epoch * batch * workers:
            return f"epoch {epoch} uses {len(used)} samples in {per_epoch} steps"
    return None
