//! Forwards log messages of the kernel side, through aya-log.

use aya::Ebpf;
use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Forwards the kernel side's messages to the log for the lifetime of the runtime. Messages are diagnostics, so failures are
/// logged and otherwise ignored.
pub(super) fn forward(ebpf: &mut Ebpf) {
    let logger = match EbpfLogger::init(ebpf) {
        Ok(logger) => logger,
        Err(error) => return tracing::warn!(%error, "messages of the BPF programs are unavailable"),
    };
    // SAFETY: the descriptor belongs to the logger's ring buffer, which owns it and never replaces it.
    let watched = unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) };
    match watched {
        Ok(mut logger) => {
            tokio::spawn(async move {
                // An error means that the runtime is shutting down.
                while let Ok(mut guard) = logger.readable_mut().await {
                    guard.get_inner_mut().flush();
                    guard.clear_ready();
                }
            });
        }
        Err(error) => tracing::warn!(%error, "messages of the BPF programs are unavailable"),
    }
}
