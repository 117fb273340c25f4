//! The external client: a separate process that sends messages and times their echoes.
//!
//! [`PingPong`] is the plan, [`PingPong::run`] starts the process and collects its [`Echoes`]. The
//! process has real-time priority where that is allowed ([`Priority`](crate::Priority) tells), one
//! thread, and blocking sockets: it has one message in flight, on a connection drawn at random, and
//! sleeps between messages. [`Crowd`] is the other kind of client: many connections, each of which
//! sends at its time, without waiting for answers. The client in `requests` only loads a service.

mod connections;
mod crowd;
mod generator;
mod ping_pong;
mod requests;
mod spacing;

pub use self::connections::Connections;
pub(crate) use self::connections::connect;
pub(crate) use self::crowd::send_as_crowd;
pub use self::crowd::{Crowd, CrowdEchoes};
pub(crate) use self::generator::generate;
pub use self::ping_pong::{Echoes, PingPong};
pub(crate) use self::requests::{Requests, request};
