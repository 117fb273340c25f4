//! Enums whose values stand for words or for numbers.

/// An enum whose values are shown as words, padded if a width is asked for.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$docs:meta])* $value:ident => $word:literal,)* }) => {
        $(#[$meta])*
        pub enum $type {
            $($(#[$docs])* $value,)*
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $(Self::$value => $word,)*
                })
            }
        }
    };
}

/// An enum whose values have numbers outside of this program: in packets, or in instructions.
#[cfg(any(feature = "messages", feature = "nic"))]
macro_rules! numbered {
    ($(#[$meta:meta])* $vis:vis enum $type:ident: $number:ident { $($(#[$docs:meta])* $value:ident = $code:literal,)* }) => {
        $(#[$meta])*
        $vis enum $type {
            $($(#[$docs])* $value,)*
        }

        impl $type {
            /// All values, in order.
            $vis const ALL: [Self; [$($code),*].len()] = [$(Self::$value),*];

            pub(crate) const fn number(self) -> $number {
                match self {
                    $(Self::$value => $code,)*
                }
            }

            pub(crate) fn from_number(number: $number) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.number() == number)
            }
        }
    };
}
