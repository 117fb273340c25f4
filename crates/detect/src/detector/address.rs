//! Addresses of registered handles.

/// The address of a registered handle in the tokens of the poller: index and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandleAddress {
    /// Below [`HANDLES_MAX`].
    pub(crate) index: u32,
    pub(crate) generation: u8,
}

/// The most handles of one server: an index takes 24 bits of a token.
pub(crate) const HANDLES_MAX: usize = (1 << 24) - 1;
