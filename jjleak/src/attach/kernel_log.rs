//! Messages of the kernel side, by aya-log.

use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Hands the kernel side's messages to the log for as long as the runtime runs. They are diagnostics: failing to
/// get them is said, and no reason to stop.
pub(super) fn forward(ebpf: &mut Ebpf) {
    let logger = match EbpfLogger::init(ebpf) {
        Ok(logger) => logger,
        Err(error) => return tracing::warn!(%error, "no messages of the kernel side"),
    };
    // SAFETY: the logger's descriptor is that of its ring buffer, which it owns and never exchanges.
    let watched = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) };
    match watched {
        Ok(mut logger) => {
            tokio::spawn(async move {
                // An error means that the runtime is going down.
                while let Ok(mut guard) = logger.readable_mut().await {
                    guard.get_inner_mut().flush();
                    guard.clear_ready();
                }
            });
        }
        Err(error) => tracing::warn!(%error, "no messages of the kernel side"),
    }
}
