//! Messages to a service manager: `sd_notify(3)` of systemd, by datagrams to the socket that it names.
//!
//! ```text
//!   start ──▶ READY=1 ──▶ (WATCHDOG=1 every half of the manager's time) ──▶ STOPPING=1 ──▶ drain ──▶ end
//!                ▲  │ SIGHUP
//!                └──┴ RELOADING=1
//! ```

use std::{
    cell::RefCell,
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    process,
    rc::Rc,
    time::Duration,
};

use vigie::{Runtime, detect::clock::monotonic_now, time::sleep};

use crate::journal::log;

/// The manager that has started this process, if it wants to be told.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// The longest silence after which it takes this process for stuck.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Reads the environment.
    pub(crate) fn from_environment() -> Self {
        let Some(path) = env::var_os("NOTIFY_SOCKET") else { return Self::default() };
        let number = |name| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        // It may be meant for another process, which has started this one.
        let is_own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| *micros > 0 && is_own);
        match open(&path) {
            Ok(socket) => {
                Self { socket: Some(socket), watchdog: watchdog.map(Duration::from_micros) }
            }
            Err(error) => {
                log(format!("the service manager cannot be told at {}: {error}", path.display()));
                Self::default()
            }
        }
    }

    /// Tells that this process is ready, or ready again, and what it does.
    pub(crate) fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// Tells that the file is read again; [`ready`](Self::ready) ends this.
    pub(crate) fn reloading(&self) {
        // The manager's clock is the monotonic one, too.
        let micros = monotonic_now().as_nanos() / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Tells that this process ends.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=drains");
    }

    /// Tells that another process is now the service, and this one drains.
    pub(crate) fn replaced_by(&self, pid: i32) {
        self.tell(&format!("MAINPID={pid}"));
    }

    fn tell(&self, state: &str) {
        if let Some((socket, manager)) = &self.socket
            && let Err(error) = socket.send_to_addr(state.as_bytes(), manager)
        {
            let state = state.lines().next().unwrap_or_default();
            log(format!("the service manager was not told {state}: {error}"));
        }
    }
}

/// A socket that never blocks, and the manager's address: a path, or an abstract name after `@`.
fn open(path: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// Tells the manager now and then that this thread and those of the streams still run tasks.
pub(crate) async fn keep_alive(manager: Rc<ServiceManager>, streams: Rc<RefCell<Option<Runtime>>>) {
    let Some(time) = manager.watchdog else { return };
    loop {
        sleep(time / 2).await;
        let handle = streams.borrow().as_ref().map(|streams| streams.handle().clone());
        if let Some(handle) = handle {
            // If no worker runs it, the manager hears nothing.
            let _ = handle.spawn(async {}).await;
        }
        manager.tell("WATCHDOG=1");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc::channel};

    use vigie::{Flavor, time::timeout};

    use super::*;

    /// Goal: the manager hears nothing while the workers of the streams are stuck, though this thread runs, and hears again when they go on. Method: tasks that block
    /// every worker, and every thread that could stand in for one, for as long as ten periods; a socket in the manager's place.
    #[test]
    fn stuck_workers_are_silent() {
        let name = format!("vigie-watchdog-{}", process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_nonblocking(true).unwrap();
        let socket = Some(open(OsStr::new(&format!("@{name}"))).unwrap());
        let period = Duration::from_millis(20);
        let own = Rc::new(ServiceManager { socket, watchdog: Some(period) });
        let builder = Runtime::builder().workers(1).reserve_threads(1);
        let streams = Rc::new(RefCell::new(Some(builder.build().unwrap())));
        let handle = streams.borrow().as_ref().unwrap().handle().clone();
        let (free, stuck) = channel::<()>();
        let (is_stuck, seen) = channel();
        let stuck = Arc::new(Mutex::new(stuck));
        // The worker, and the thread that stands in for it.
        let blocked = [0, 1].map(|_| {
            let (is_stuck, stuck) = (is_stuck.clone(), Arc::clone(&stuck));
            let blocked = handle.spawn(async move {
                is_stuck.send(()).unwrap();
                let _ = stuck.lock().unwrap().recv();
            });
            seen.recv().unwrap();
            blocked
        });
        let runtime = Runtime::builder().flavor(Flavor::UserLevel).build().unwrap();
        runtime.block_on(async {
            assert!(
                timeout(10 * period, keep_alive(Rc::clone(&own), Rc::clone(&streams)))
                    .await
                    .is_err()
            );
            let mut bytes = [0; 64];
            assert_eq!(manager.recv(&mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            drop(free);
            for one in blocked {
                one.await.unwrap();
            }
            let told = async {
                while manager.recv(&mut bytes).is_err() {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            vigie::select! {
                () = keep_alive(own, Rc::clone(&streams)) => panic!("it has no end"),
                () = told => {}
            }
            assert!(bytes.starts_with(b"WATCHDOG=1"));
        });
        drop(streams.take());
    }
}
