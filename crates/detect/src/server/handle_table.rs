//! The registered detectors by their addresses.

use super::registered::Registered;
use crate::sync::Arc;

#[derive(Default)]
pub(crate) struct HandleTable {
    pub(crate) rows: Vec<HandleRow>,
    pub(crate) free: Vec<u32>,
}

#[derive(Clone, Default)]
pub(crate) struct HandleRow {
    pub(crate) generation: u8,
    pub(crate) handle: Option<Arc<dyn Registered>>,
}
