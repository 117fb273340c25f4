//! The flavors of scheduler [bouge02, §3.3], one file each.

pub(crate) mod hybrid;
pub(crate) mod kernel_level;
pub(crate) mod user_level;
