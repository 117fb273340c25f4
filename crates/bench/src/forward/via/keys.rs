//! Keys of figures, and the size of packets.

pub(in crate::forward) const MB_S: &str = "mb_per_s";
pub(super) const US: &str = "us";
pub(super) const HOST_CPU_US: &str = "host_cpu_us_per_message";
pub(super) const ENGINE_CPU_US: &str = "engine_cpu_us_per_message";
pub(super) const HOST_SHARE: &str = "host_cpu_share";
pub(super) const PLANNED: &str = "planned";
pub(super) const PACKET_BYTES_U32: u32 = 2048;
