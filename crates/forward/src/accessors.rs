//! Methods that only return the field of the same name.

/// Getters of fields that can be copied.
macro_rules! getters {
    ($($(#[$meta:meta])* $field:ident: $type:ty,)*) => {$(
        $(#[$meta])*
        #[must_use]
        pub const fn $field(&self) -> $type {
            self.$field
        }
    )*};
}
