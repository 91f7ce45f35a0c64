//! Urgency of a tensor.

/// Higher values go first; only the order matters. By convention it is minus the position in the model's parameter order, because the next
/// forward pass needs the first parameters first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Priority(pub i32);

impl Priority {
    /// The priority of the `position`-th parameter of a model.
    pub fn of_position(position: usize) -> Self {
        Self(i32::try_from(position).map_or(i32::MIN, |position| -position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parameter_is_the_most_urgent() {
        assert!(Priority::of_position(0) > Priority::of_position(1));
        assert_eq!(Priority::of_position(usize::MAX), Priority(i32::MIN));
    }
}
