//! Finds running processes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names of all processes with a directory in their environment or as working directory: everything
/// that a browser started, in any process group.
pub(crate) fn processes_in(directory: &Path) -> Vec<String> {
    let path = directory.as_os_str().as_bytes();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let environment = fs::read(process.path().join("environ")).unwrap_or_default();
        let directory = fs::read_link(process.path().join("cwd")).unwrap_or_default();
        let in_environment = environment.windows(path.len()).any(|bytes| bytes == path);
        if in_environment || directory.as_os_str().as_bytes().starts_with(path) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            found.push(format!("{} {}", process.file_name().display(), name.trim()));
        }
    }
    found
}
