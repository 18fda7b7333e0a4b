use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn write(mut file: PendingFile, bytes: &[u8]) -> PathBuf {
    file.write(bytes).unwrap();
    file.finish().unwrap()
}

#[test]
fn a_finished_file_has_its_name_and_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(PendingFile::create(&folder.path().join("a.svg")).unwrap(), b"<svg/>");
    assert_eq!(fs::read(path).unwrap(), b"<svg/>");
    assert_eq!(names(folder.path()), ["a.svg"]);
}

#[test]
fn a_dropped_file_leaves_nothing_and_keeps_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("a.svg");
    fs::write(&destination, b"old").unwrap();
    let mut file = PendingFile::create(&destination).unwrap();
    file.write(b"half").unwrap();
    drop(file);
    assert_eq!(fs::read(&destination).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["a.svg"]);
}

#[test]
fn a_file_system_without_unnamed_files_gets_whole_files_too() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("a.svg");
    let file = NamedTempFile::new_in(folder.path()).unwrap();
    let (file, path) = file.into_parts();
    let registered = Registered::new(&path);
    let content = Content::Named { file: NamedTempFile::from_parts(file, path), _registered: registered };
    write(PendingFile { destination: destination.clone(), content }, b"<svg/>");
    assert_eq!(fs::read(&destination).unwrap(), b"<svg/>");
    assert_eq!(names(folder.path()), ["a.svg"]);
}

#[test]
fn a_missing_folder_is_named() {
    let error = PendingFile::create(Path::new("/nonexistent/a.svg")).unwrap_err();
    let Error::Create { folder, source } = error else { panic!("{error:?}") };
    assert_eq!(folder, Path::new("/nonexistent"));
    assert!(!source.to_string().contains(PREFIX), "{source}");
}

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let destination = folder.path().join("a.svg");
    // /dev/full stands for the full disk.
    let content = Content::Unnamed(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let mut file = PendingFile { destination: destination.clone(), content };
    assert!(matches!(file.write(b"x"), Err(Error::Write { ref path, .. }) if *path == destination));
    drop(file);
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_device_is_written_to_and_stays_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("null");
    symlink("/dev/null", &link).unwrap();
    for destination in [Path::new("/dev/null"), &link] {
        write(PendingFile::named(destination).unwrap(), b"<svg/>");
        assert!(is_stream(destination));
    }
    assert!(link.is_symlink());
}

#[test]
fn a_pipe_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let reader = Command::new("cat").arg(&pipe).stdout(std::process::Stdio::piped()).spawn().unwrap();
    write(PendingFile::named(&pipe).unwrap(), b"<svg/>");
    assert_eq!(reader.wait_with_output().unwrap().stdout, b"<svg/>");
    assert_eq!(names(folder.path()), ["pipe"]);
}

#[test]
fn a_link_that_the_user_names_stands_for_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
    fs::write(&file, b"old").unwrap();
    symlink("file", &link).unwrap();
    write(PendingFile::named(&link).unwrap(), b"new");
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert!(link.is_symlink());
}

#[test]
fn a_link_that_has_the_name_jjleak_chooses_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
    fs::write(&file, b"precious").unwrap();
    symlink(&file, &link).unwrap();
    write(PendingFile::create(&link).unwrap(), b"new");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert_eq!(fs::read(&link).unwrap(), b"new");
}

#[test]
fn what_cannot_be_written_to_is_refused_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let [socket, dangling] = ["socket", "dangling"].map(|name| folder.path().join(name));
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    symlink("nowhere", &dangling).unwrap();
    assert!(matches!(PendingFile::named(&socket), Err(Error::NotAFile { .. })));
    assert!(matches!(PendingFile::named(&dangling), Err(Error::Open { .. })));
    assert!(matches!(PendingFile::named(folder.path()), Err(Error::IsFolder { .. })));
    assert_eq!(names(folder.path()), ["dangling", "socket"]);
}
