//! Mixes of behaviour: what they are, the server and the clients that carry them out.

mod behaviour;
mod call;
mod closed;
mod draw;
mod paced;
mod schedule;
mod server;
mod service_time;
mod tasks;
mod wire;

pub(crate) use self::behaviour::Behaviour;
pub(crate) use self::closed::ClosedClients;
pub(crate) use self::draw::{CASES, Mix};
pub(crate) use self::paced::{PacedClient, ResponseTimes};
pub(crate) use self::schedule::arrivals;
pub(crate) use self::server::LoadServer;
pub(crate) use self::service_time::ServiceTime;
#[cfg(test)]
pub(crate) use self::service_time::exponential;
pub(crate) use self::tasks::serve as serve_on;
