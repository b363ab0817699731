//! Pictures of a page that is being loaded, as PNG.

use std::io::Write;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

const WIDTH: usize = 320;
const HEIGHT: usize = 200;

/// The page at `stage` of 0 to `last`: empty, with its heading, with half of its pictures, whole.
pub(crate) fn page(stage: usize, last: usize) -> Vec<u8> {
    let share = if last == 0 { 1.0 } else { stage as f64 / last as f64 };
    let mut rows = Vec::with_capacity(HEIGHT * (3 * WIDTH + 1));
    for y in 0..HEIGHT {
        rows.push(0);
        for x in 0..WIDTH {
            rows.extend(colour(x, y, share));
        }
    }
    let mut header = Vec::new();
    header.extend((WIDTH as u32).to_be_bytes());
    header.extend((HEIGHT as u32).to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&rows).unwrap();
    let mut out = vec![0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a];
    chunk(&mut out, *b"IHDR", &header);
    chunk(&mut out, *b"IDAT", &packed.finish().unwrap());
    chunk(&mut out, *b"IEND", &[]);
    out
}

fn colour(x: usize, y: usize, share: f64) -> [u8; 3] {
    let inside = |left: usize, top: usize, width: usize, height: usize| {
        (left..left + width).contains(&x) && (top..top + height).contains(&y)
    };
    match () {
        () if share > 0.0 && inside(20, 16, 180, 18) => [40, 44, 52],
        () if share > 0.0 && inside(20, 44, 280, 5) => [150, 156, 164],
        () => {
            let picture = (0..20).find(|n| inside(20 + n % 5 * 58, 64 + n / 5 * 33, 48, 26));
            match picture {
                Some(n) if (n as f64) < 40.0 * (share - 0.5) => [60, 110 + 5 * n as u8, 170],
                _ => [255, 255, 255],
            }
        }
    }
}

fn chunk(out: &mut Vec<u8>, kind: [u8; 4], content: &[u8]) {
    out.extend((content.len() as u32).to_be_bytes());
    let mut crc = Crc::new();
    crc.update(&kind);
    crc.update(content);
    out.extend(kind);
    out.extend(content);
    out.extend(crc.sum().to_be_bytes());
}
