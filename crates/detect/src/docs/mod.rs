//! Longer texts; their examples are compiled and run with the tests.

#[doc = include_str!("bring_a_device.md")]
pub mod bring_a_device {}

#[doc = include_str!("write_a_detector.md")]
pub mod write_a_detector {}
