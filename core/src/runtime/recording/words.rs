//! Enums that are a byte in an event, and a word in a dump.

/// Declares such an enum: its variants, and the word for each of them in a dump.
///
/// It gets `ALL`, `word`, and `of`, which finds the variant of a byte.
#[macro_export]
macro_rules! flight_words {
    ($(#[$about:meta])* $vis:vis enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        $vis enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All of them, in the order of their bytes.
            $vis const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word for it in a dump.
            $vis fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }

            /// That of a byte. `None` for a byte that is none.
            $vis fn of(byte: u64) -> Option<Self> {
                Self::ALL.get(usize::try_from(byte).ok()?).copied()
            }
        }
    };
}

pub use flight_words as words;
