//! Records on disk: supported formats, and errors.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use firstflight_report::{
    Cell, Record, SCHEMA, Sample, json_schema, parse, read, replace_file, write,
};
use firstflight_testkit::assert_committed;

fn committed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn record() -> Record {
    Record {
        schema: SCHEMA,
        seed: 7,
        cells: vec![Cell { server: "nginx".to_owned(), ..Cell::default() }],
        samples: vec![Sample { time_ms: Some(40.625), ..Sample::default() }],
        ..Record::default()
    }
}

#[test]
fn a_record_is_read_back_compressed_or_not() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["run.json", "run.json.gz"] {
        let path = directory.path().join(name);
        write(&record(), &path).unwrap();
        let packed = std::fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]);
        assert_eq!(packed, name.ends_with("gz"));
        let again = read(&path).unwrap();
        assert_eq!(serde_json::to_value(&again).unwrap(), serde_json::to_value(record()).unwrap());
    }
}

#[test]
fn a_compressed_record_is_known_by_its_bytes_not_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let (packed, renamed) = (directory.path().join("a.gz"), directory.path().join("a.json"));
    write(&record(), &packed).unwrap();
    std::fs::rename(&packed, &renamed).unwrap();
    assert_eq!(read(&renamed).unwrap().seed, 7);
}

#[test]
fn a_file_is_replaced_as_a_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let (path, link) = (directory.path().join("a"), directory.path().join("link"));
    replace_file(&path, |out| out.write_all(b"old")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("a", &link).unwrap();
    let failed = replace_file(&path, |out| {
        out.write_all(b"new")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert!(failed.is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    replace_file(&link, |out| out.write_all(b"new")).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert!(link.is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left beside them");
    replace_file(Path::new("/dev/null"), |out| out.write_all(b"new")).unwrap();
}

#[test]
fn schema_2_is_read_as_over_tcp() {
    let record = read(&committed("crates/report/tests/data/schema-2.json.gz")).unwrap();
    assert_eq!(record.schema, SCHEMA);
    for cell in &record.cells {
        assert_eq!((&*cell.client, &*cell.transport, cell.token), ("firstflight", "tcp", false));
    }
    assert!(!record.costs.is_empty() && record.costs.iter().all(|cost| cost.transport == "tcp"));
    assert_eq!(record.replays[0].name(), record.replays[0].server);
}

#[test]
fn an_invalid_record_is_refused_with_a_reason() {
    let refusal = |json: &str| parse(json.as_bytes()).unwrap_err().to_string();
    assert!(refusal("{").contains("EOF"));
    assert!(refusal("{}").contains("missing field `schema`"));
    for schema in [1, 99] {
        assert_eq!(
            refusal(&format!(r#"{{"schema": {schema}}}"#)),
            format!(
                "unsupported schema {schema}, supported are 2 and 3; read it with the version that \
                 wrote it"
            )
        );
    }
    let mut out_of_range = record();
    out_of_range.samples[0].cell = 12;
    assert_eq!(
        refusal(&serde_json::to_string(&out_of_range).unwrap()),
        "damaged record: its sample refers to cell 12 of 1; measure again"
    );
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other.json");
    std::fs::write(&path, "[1]").unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("other.json is not a record"), "{error}");
    let error = read(&directory.path().join("none.json")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the record"), "{error}");
}

#[test]
fn the_published_schema_is_current() {
    assert_committed("docs/reference/record.schema.json", &json_schema());
}

#[test]
fn the_schema_has_every_field_of_a_record() {
    let schema: serde_json::Value = serde_json::from_str(&json_schema()).unwrap();
    let record = serde_json::to_value(record()).unwrap();
    for field in record.as_object().unwrap().keys() {
        assert!(schema["properties"][field].is_object(), "{field}");
    }
    assert!(!json_schema().contains("](crate"), "links of the source mean nothing in a schema");
}
