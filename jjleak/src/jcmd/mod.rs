//! Asks a HotSpot JVM for a perf map or a class histogram, or to load a library, as the JDK's `jcmd` does. This happens only on the user's
//! request: it is the one thing that jjleak makes a process do.
//!
//! In: a process. Out: a [`Request`] that runs by itself, within a time limit, or a [`ClassHistogram`]. The JVM listens on a socket in
//! its `/tmp`. If it does not listen yet, SIGQUIT starts the listener, provided that a certain file exists
//! (`src/hotspot/os/posix/attachListener_posix.cpp` in the JDK). In other cases that signal makes it print
//! all threads' stacks into the application's output, or ends it: then it is not sent. All this runs in a
//! helper process without privileges, with the user and the files of the JVM ([`run`]).

mod agent;
mod child;
mod halted;
mod histogram;
mod question;
mod request;
mod signal;

pub use agent::{Agent, load};
pub use child::{VERB, run};
pub use histogram::{ClassHistogram, Held, class_histogram, parse_histogram};
pub use question::Question;
pub use request::{Request, State};
pub use signal::{Access, Unfit, access, access_of};
