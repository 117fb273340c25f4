//! Methods that only set or return the field of the same name.

/// Setters of a builder: `field: Type` sets the field to the argument, `field: Type => Some` to the argument in `Some`.
macro_rules! setters {
    ($($(#[$meta:meta])* $field:ident: $type:ty $(=> $some:ident)?,)*) => {$(
        $(#[$meta])*
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $($some)?($field);
            self
        }
    )*};
}

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
