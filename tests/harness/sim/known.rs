//! Findings that are not mended yet: what each is, and how narrowly the simulation spares it.
//!
//! A finding is spared by leaving out exactly what makes it happen, and only in the seeds in which it would. [`run_unspared`] leaves
//! nothing out for one of them, and a test requires that it then still falls out, so that an entry disappears with its mend.
//!
//! [`run_unspared`]: super::run_unspared

/// A finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// R3. A server keeps the sums of names that are used once. Spared: nobody looks.
    OneShotNamesKept,
}

impl Known {
    /// Every finding that is not mended.
    pub const ALL: &'static [Self] = &[Self::OneShotNamesKept];
}
