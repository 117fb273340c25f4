//! Longer texts, whose examples are compiled and run with the tests.

#[doc = include_str!("write_a_detector.md")]
pub mod write_a_detector {}
