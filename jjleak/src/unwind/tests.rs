//! Rows against gimli's own evaluation, on files of this machine and on made-up ones.

mod damaged;
mod evaluated;
mod files;
mod oracle;
mod rules;
