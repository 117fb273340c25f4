//! The message engine over the simulated network: what it promises, with everything that can go wrong.

mod cluster;
mod hostile;
mod in_place;
mod semantics;
mod sim;
mod traffic;
