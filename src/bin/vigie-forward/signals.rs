//! SIGTERM and SIGINT: the first one drains, the second one ends.

use std::io;

use vigie::{
    detect::{Handle, Server},
    spawn_local,
    stock::signal::{SignalKind, Signals, signal},
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
    for (kind, name, number) in ENDING {
        let handle: Handle<Signals> = signal(server, kind).map_err(io::Error::other)?;
        let mailbox = std::rc::Rc::clone(mailbox);
        let listener = spawn_local(async move {
            while handle.recv().await.is_ok() {
                mailbox.post(InstanceEvent::Signal { name, number });
            }
        });
        listener.detach();
    }
    Ok(())
}
