//! Errors of `bind` and `connect` that say where, and what to do.

use std::{error, fmt, io, os::unix::ffi::OsStrExt, path::Path};

use rustix::io::Errno;

/// The error of a bind to a port that the kernel refused.
pub(super) fn bind(address: impl fmt::Display, error: impl Into<io::Error>) -> io::Error {
    let source = error.into();
    let remedy = match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another socket has this port; `ss -tulpn` lists them with their programs: end that program, or bind to \
             another port (0 takes a free one)"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have the address; `ip address` lists those it has, and 0.0.0.0 or [::] means all"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need the capability CAP_NET_BIND_SERVICE: take a higher one, or lower \
             `net.ipv4.ip_unprivileged_port_start`"
        }
        _ => return source,
    };
    refused(format_args!("bind to {address}"), source, remedy)
}

/// The error of a bind to `path` that the kernel refused.
pub(super) fn bind_unix(path: &Path, error: Errno) -> io::Error {
    let is_abstract = is_abstract(path);
    let remedy = match error {
        Errno::ADDRINUSE if is_abstract => {
            "another socket has this name; `ss -xlp` lists them with their programs: end that program, or take another name"
        }
        Errno::ADDRINUSE => {
            "there is a file already; `ss -xlp` lists the sockets in use with their programs: if no program listens \
             there, remove the file"
        }
        Errno::NOENT => "the folder does not exist: make it first",
        Errno::NOTDIR => "a part of the path is a file, not a folder",
        Errno::ACCESS => {
            "this user may not create files in the folder: take another one, or change its permissions"
        }
        Errno::ROFS => "the file system is mounted read-only: take another folder",
        error => return of_any_call(path, "bind", error),
    };
    refused(format_args!("bind to {}", Shown(path)), error.into(), remedy)
}

/// The error of a connect to `path` that the kernel refused.
pub(super) fn connect_unix(path: &Path, error: Errno) -> io::Error {
    let remedy = match error {
        Errno::NOENT => {
            "there is no such file: start the program that listens there, or correct the path"
        }
        Errno::CONNREFUSED if is_abstract(path) => {
            "no program listens there: start it, or correct the name"
        }
        Errno::CONNREFUSED => {
            "no program listens there, or the file is not a socket: start the program, or correct the path"
        }
        Errno::NOTDIR => "a part of the path is a file, not a folder",
        Errno::ACCESS => {
            "this user needs the permission to write to the socket's file, and to search each folder of the path"
        }
        Errno::PROTOTYPE => {
            "that socket is of another kind: a stream connects to a listener, a datagram socket to its like"
        }
        error => return of_any_call(path, "connect", error),
    };
    refused(format_args!("connect to {}", Shown(path)), error.into(), remedy)
}

/// The error of a path that no socket can have, or else the kernel's own.
fn of_any_call(path: &Path, call: &str, error: Errno) -> io::Error {
    let remedy = match error {
        Errno::NAMETOOLONG => {
            "a socket's path has at most 107 bytes: shorten it, or change into its folder first"
        }
        Errno::INVAL if path.as_os_str().as_bytes().contains(&0) => {
            "a path has no NUL bytes, except one in front of an abstract name"
        }
        error => return error.into(),
    };
    refused(format_args!("{call} to {}", Shown(path)), error.into(), remedy)
}

fn is_abstract(path: &Path) -> bool {
    path.as_os_str().as_bytes().first() == Some(&0)
}

/// A path as text; an abstract name with `@` in front, as `ss` shows it.
struct Shown<'a>(&'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string_lossy();
        match text.strip_prefix('\0') {
            Some(name) => write!(f, "@{}", name.escape_debug()),
            None => write!(f, "{}", text.escape_debug()),
        }
    }
}

/// Says what could not be done, why, and what to do.
fn refused(what: fmt::Arguments<'_>, source: io::Error, remedy: &str) -> io::Error {
    let message = format!("cannot {what}: {source}: {remedy}");
    io::Error::new(source.kind(), Refused { message, source })
}

struct Refused {
    message: String,
    source: io::Error,
}

/// Prints the message alone: a `main` that returns the error prints it.
impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.message, f)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl error::Error for Refused {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}
