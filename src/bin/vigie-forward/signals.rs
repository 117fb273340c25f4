//! SIGTERM and SIGINT: the first one drains, the second one ends. SIGHUP: the file is read again.

use std::io;

use vigie::{
    detect::{Handle, Server},
    detectors::signal::{SignalKind, Signals, signal},
    spawn_local,
};

use crate::{instance::InstanceEvent, mailbox::Mailbox};

/// The signals that end the process, with their names.
const ENDING: [(SignalKind, &str, u8); 2] =
    [(SignalKind::INTERRUPT, "SIGINT", 2), (SignalKind::TERMINATE, "SIGTERM", 15)];

/// Posts each signal from now on.
pub(crate) fn listen(
    server: &Server,
    mailbox: &std::rc::Rc<Mailbox<InstanceEvent>>,
) -> io::Result<()> {
    let ending = ENDING.map(|(kind, name, number)| (kind, InstanceEvent::Signal { name, number }));
    for (kind, event) in ending.into_iter().chain([(SignalKind::HANGUP, InstanceEvent::Reload)]) {
        let handle: Handle<Signals> = signal(server, kind).map_err(io::Error::other)?;
        let mailbox = std::rc::Rc::clone(mailbox);
        let listener = spawn_local(async move {
            while handle.recv().await.is_ok() {
                mailbox.post(event.clone());
            }
        });
        listener.detach();
    }
    Ok(())
}
