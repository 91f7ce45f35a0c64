//! Reads an input as a sequence of choices, for targets that make events of bytes.

/// What is left of an input. At its end all numbers are 0, so that every input has a meaning and a short one is a prefix of longer ones.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Reads `bytes` from their beginning.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub(super) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// A number below `bound`, which is at most 256.
    pub(super) fn below(&mut self, bound: u16) -> u8 {
        u8::try_from(u16::from(self.byte()) % bound).expect("below 256")
    }

    /// One of `choices`, of which there are at most 256.
    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let count = u16::try_from(choices.len()).expect("few choices");
        choices[usize::from(self.below(count))]
    }

    /// The next eight bytes, as a number.
    pub(super) fn word(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The next bytes, as many as the next byte says.
    pub(super) fn short(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (head, tail) = self.0.split_at(len);
        self.0 = tail;
        head
    }

    /// All that is left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// The next bytes, filled up with zeros.
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (head, tail) = self.0.split_at(N.min(self.0.len()));
        self.0 = tail;
        std::array::from_fn(|at| head.get(at).copied().unwrap_or(0))
    }
}
