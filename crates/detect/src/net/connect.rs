//! Connecting to a host with several addresses: "happy eyeballs" (RFC 8305).

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use super::lookup::{Addresses, no_address};
use crate::server::Server;

/// The time that an attempt is alone before the next one begins beside it (RFC 8305, section 5, the recommended value).
pub(super) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Puts addresses into the order in which to try them: those of the first one's family alternate with the others
/// (RFC 8305, section 4).
fn interleaved(addresses: Addresses) -> Vec<SocketAddr> {
    let all: Vec<SocketAddr> = addresses.collect();
    let is_preferred = |address: &&SocketAddr| address.is_ipv6() == all[0].is_ipv6();
    let mut preferred = all.iter().filter(is_preferred);
    let mut others = all.iter().filter(|address| !is_preferred(address));
    let mut order = Vec::with_capacity(all.len());
    while order.len() < all.len() {
        order.extend(preferred.next());
        order.extend(others.next());
    }
    order
}

/// Returns the first connection that `attempt` makes to one of the addresses. The next attempt begins once the last one
/// has failed, or has gone on for [`ATTEMPT_DELAY`].
///
/// # Errors
/// If all fail, the error of the one that failed last; [`io::ErrorKind::InvalidInput`] if there is no address; the
/// timer's.
pub(super) async fn first_connected<T, F>(
    server: &Server,
    mut addresses: Addresses,
    attempt: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    if addresses.len() <= 1 {
        return attempt(addresses.next().ok_or_else(no_address)?).await;
    }

    let mut waiting = interleaved(addresses).into_iter();
    let mut running: Vec<Pin<Box<F>>> = Vec::new();
    let mut last_error = None;
    loop {
        running.extend(waiting.next().map(|address| Box::pin(attempt(address))));
        if running.is_empty() {
            return Err(last_error.unwrap_or_else(no_address));
        }
        let is_last = waiting.len() == 0;
        let mut delay = pin!(server.timers().wait(server.now() + ATTEMPT_DELAY));
        // Ends with a connection, or when the next attempt is due.
        let connected = poll_fn(|cx| {
            let mut has_failed = false;
            let mut index = 0;
            while index < running.len() {
                match running[index].as_mut().poll(cx) {
                    Poll::Ready(Ok(connected)) => return Poll::Ready(Ok(Some(connected))),
                    Poll::Ready(Err(error)) => {
                        last_error = Some(error);
                        has_failed = true;
                        drop(running.remove(index));
                    }
                    Poll::Pending => index += 1,
                }
            }
            if running.is_empty() || (has_failed && !is_last) {
                return Poll::Ready(Ok(None));
            }
            if is_last {
                return Poll::Pending;
            }
            delay.as_mut().poll(cx).map_ok(|()| None)
        })
        .await
        .map_err(io::Error::from)?;
        if let Some(connected) = connected {
            return Ok(connected);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;
    use crate::testing::Simulation;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn all() -> Vec<SocketAddr> {
        ["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"].map(address).to_vec()
    }

    /// The result of an attempt at an address, after a while.
    type Fate = (&'static str, Duration, bool);

    /// Connects in virtual time, and returns who was tried when, in milliseconds, and what came of it.
    fn connect(fates: &[Fate]) -> (Vec<(SocketAddr, u128)>, io::Result<SocketAddr>) {
        let mut simulation = Simulation::new(1);
        let server = simulation.server().clone();
        let tried = Rc::new(RefCell::new(Vec::new()));
        let begin = server.now();
        let result = simulation.block_on(async {
            first_connected(&server, all().into(), |to| {
                let (server, tried) = (&server, &tried);
                async move {
                    tried.borrow_mut().push((to, (server.now() - begin).as_millis()));
                    let fate = fates.iter().find(|fate| address(fate.0) == to);
                    let (after, succeeds) =
                        fate.map_or((Duration::ZERO, false), |fate| (fate.1, fate.2));
                    server.timers().wait(server.now() + after).await.unwrap();
                    if succeeds { Ok(to) } else { Err(io::Error::other(to.to_string())) }
                }
            })
            .await
        });
        let result = result.expect("nothing waits forever");
        (tried.take(), result)
    }

    #[test]
    fn families_alternate() {
        let order = ["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"].map(address);
        assert_eq!(interleaved(all().into()), order);
    }

    /// Goal: an address that does not answer costs a quarter of a second, not the minutes of TCP.
    #[test]
    fn a_silent_address_does_not_hold_up_the_next() {
        const HOUR: Duration = Duration::from_secs(3600);
        let (tried, connected) = connect(&[
            ("[::1]:1", HOUR, false),
            ("1.1.1.1:1", HOUR, true),
            ("[::2]:1", Duration::from_millis(10), true),
        ]);
        assert_eq!(connected.unwrap(), address("[::2]:1"));
        let tried: Vec<_> = tried.into_iter().map(|(to, at)| (to.to_string(), at)).collect();
        assert_eq!(
            tried,
            [("[::1]:1".into(), 0), ("1.1.1.1:1".into(), 250), ("[::2]:1".into(), 500)]
        );
    }

    #[test]
    fn a_slow_first_attempt_still_wins() {
        let (tried, connected) = connect(&[
            ("[::1]:1", Duration::from_millis(300), true),
            ("1.1.1.1:1", Duration::from_millis(200), true),
        ]);
        assert_eq!(connected.unwrap(), address("[::1]:1"));
        assert_eq!(tried.len(), 2);
    }

    /// Goal: refusals are passed over at once, and the last is reported.
    #[test]
    fn all_refuse() {
        let (tried, connected) = connect(&[]);
        assert_eq!(connected.unwrap_err().to_string(), "[::3]:1");
        assert!(tried.iter().all(|(_, at)| *at == 0), "{tried:?}");
        assert_eq!(tried.len(), 5);
    }
}
