//! Asks a HotSpot JVM to write down the names of its code, as the JDK's `jcmd PID Compiler.perfmap` does. Nobody is asked
//! unless the user wants it: it is the one thing that jjleak has a process do.
//!
//! In: a process. Out: a [`Request`] that runs by itself, and ends within a limit. The JVM listens on a socket in its `/tmp`;
//! one that does not listen yet begins to when it gets SIGQUIT and finds a file that says what for
//! (`src/hotspot/os/posix/attachListener_posix.cpp` in the JDK). In other cases that signal makes it print all threads'
//! stacks into the application's output, or ends it: then it is not sent. A process of its own does all this, without
//! privileges, with the user and the files of the JVM ([`run`]).

mod child;
mod halted;
mod request;
mod signal;

pub use child::{VERB, run};
pub use request::{Request, State};
pub use signal::{Unfit, Way, way, way_of};
