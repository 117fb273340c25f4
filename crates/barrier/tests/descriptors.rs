//! Members that are made where descriptors are scarce. The limit is of the process, so that no other test is here.

#![cfg(not(loom))]

use std::{
    error::Error,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsRawFd,
    pin::pin,
    process,
    task::{Context, Poll, Waker},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use vigie_barrier::{
    Group, Rank,
    local::shm::{BootstrapPoint, ShmBootstrap, ShmFormationError, ShmMember},
    net::{FormationError, NetBarrier},
};
use vigie_detect::{Flavor, Instant, Server};
use vigie_via::datagram::UdpConfig;

/// Returns the output of a future that need not wait for others.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// Returns the number of the kernel's error at the end of the chain.
fn kernel_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && let Some(number) = error.raw_os_error()
        {
            return Some(number);
        }
        next = error.source();
    }
    None
}

/// Calls `make` with more and more free descriptors, until it succeeds. Returns how often it failed, each time for want of
/// one, as its error says.
fn with_few_descriptors<T, E: Error + 'static>(make: impl Fn() -> Result<T, E>) -> u64 {
    const MORE_MAX: u64 = 64;
    let whole = getrlimit(Resource::Nofile);
    // The lowest free number: what is open above it stays so.
    let lowest = rustix::io::dup(io::stdin()).map(|fd| fd.as_raw_fd());
    let lowest = u64::try_from(lowest.expect("one more")).expect("a number");
    for more in 0..MORE_MAX {
        let limit = Rlimit { current: Some(lowest + more), maximum: whole.maximum };
        setrlimit(Resource::Nofile, limit).expect("less than before");
        let made = make();
        setrlimit(Resource::Nofile, whole).expect("as before");
        match made {
            Ok(_) => return more,
            Err(error) => {
                assert_eq!(
                    kernel_error(&error),
                    Some(Errno::MFILE.raw_os_error()),
                    "{more} free: {error:?}"
                );
            }
        }
    }
    panic!("not even with {MORE_MAX}");
}

/// Goal: a member that is made where no descriptor is left is a typed error that names the kernel's, wherever they end, and
/// neither a panic nor a wait for ever. Method: a group of one, in shared memory and over UDP, with ever more free
/// descriptors until it is formed.
#[test]
fn a_member_without_descriptors_is_an_error() {
    let server = Server::new(Flavor::UserLevel).expect("an epoll");
    let soon = Instant::now() + Duration::from_secs(60);
    let group = Group::new(1).expect("small");
    let failed = with_few_descriptors(|| -> Result<ShmMember, ShmFormationError> {
        let point = BootstrapPoint::random().expect("random numbers");
        at_once(ShmBootstrap::new(group, Rank(0), point).join_on(&server, soon))
    });
    assert!(failed >= 4, "memory, two ends of a door, a listener: {failed}");
    // A loopback address that no other process takes.
    let [_, high, middle, low] = process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, 128 | high, middle, low.max(1));
    let failed = with_few_descriptors(|| -> Result<NetBarrier, FormationError> {
        let builder = NetBarrier::builder().server(&server).network(UdpConfig::new(own.into()));
        at_once(builder.form_at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Rank(0), 1))
    });
    assert!(failed >= 1, "a socket: {failed}");
}
