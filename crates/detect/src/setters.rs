//! Setters of configurations and builders, for all crates of the workspace.

/// Setters of a type that is `#[must_use]`: `field: Type` sets the field to the argument, `field: Type => Some` to the argument in `Some`.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$meta:meta])* $field:ident: $type:ty $(=> $some:ident)?,)*) => {$(
        $(#[$meta])*
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $($some)?($field);
            self
        }
    )*};
}
