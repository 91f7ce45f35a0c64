use super::*;

/// What PyTorch's optimizers (Lion's: its paper's formulas) make of [`start`] in 20 steps with [`gradient`], in float64.
#[rustfmt::skip]
const EXPECTED: [(&str, [f64; 8]); 14] = [
    ("sgd:lr=0.1", [-1.7, -1.325, -0.95, -0.3, 0.07500000000000001, -1.75, 1.375, 1.75]),
    ("sgd:lr=0.1,momentum=0.9", [-1.5739186042458104, -0.9455995304689419, -1.5378383499597954, -0.5482213622581766, -0.7351088518815205, -14.367737364143903, 1.678741571451132, 1.4918540818277886]),
    ("sgd:lr=0.1,momentum=0.9,dampening=0.5,weight_decay=0.1", [-0.3653435894099025, -0.28280434823611383, -0.565721468880216, -0.32457736691035327, -0.4864707011393215, -6.514163226501997, 1.0199965371251138, 0.8581032028961458]),
    ("sgd:lr=0.1,momentum=0.9,nesterov=1", [-1.5415267438212292, -1.0510395774220476, -1.6590545149638154, -0.5683992260323588, -0.8115979666933684, -15.355963627729512, 1.7608674143060192, 1.5176686736450093]),
    ("adam:lr=0.1", [-1.5996764782533468, -0.9800037202708876, -0.9025928761143808, -0.3483396335343262, -0.11765977399076155, -1.249999983999999, 1.4799825424605777, 1.7222081560406144]),
    ("adam:lr=0.1,beta1=0.8,beta2=0.9,eps=0.001,weight_decay=0.1", [-1.3081189481711268, -0.8809457324075797, -0.6968806189206351, -0.2978611358273036, -0.07326160970677023, -1.2310948427543502, 1.144914601019196, 1.3849972479443788]),
    ("adamw:lr=0.1,weight_decay=0.1", [-1.3076250784725956, -0.8011300495643882, -0.7526032378068859, -0.29168509244470703, -0.11318200518003085, -1.2075004062623222, 1.2167325207665487, 1.4052701784014119]),
    ("adagrad:lr=0.1,lr_decay=0.1,initial_accumulator_value=0.5,weight_decay=0.1", [-1.635550025736871, -1.1092551385601077, -0.7867594136855267, -0.24862013875544242, 0.16248785835053375, 0.2790753750707229, 1.2415779340214992, 1.6599907459445842]),
    ("rmsprop:lr=0.1", [-1.2410411846009195, -0.09872438952736524, -1.9948233297647335, -1.0646330896568692, -0.8740597821771472, -6.981532334343593, 1.9760831475434448, 2.011009217548452]),
    ("rmsprop:lr=0.1,alpha=0.9,momentum=0.9,centered=1,weight_decay=0.1", [0.5583064308290335, 1.690854304665028, -1.2355143390911876, -0.7962368637279712, -0.8141402012895305, -15.784339832023932, -0.09147909413100204, -0.16163536900520617]),
    ("rmsprop:lr=0.1,momentum=0.5", [-0.9619342362981697, 1.1704288150381041, -2.8755025953124904, -1.9840116156840901, -1.8412367372015745, -14.23225018535852, 2.428838116319438, 2.2561008511062615]),
    ("adamax:lr=0.1,weight_decay=0.1", [-1.4073669896024241, -0.8703017895096238, -0.6880946905506747, -0.303676079468231, -0.029594319323991026, -1.1796101859790187, 1.2553222789270397, 1.538974000035497]),
    ("lion:lr=0.1,weight_decay=0.1", [-1.6160203697108912, -1.4197512774446386, -0.9890584635923705, -0.01778069012207531, -0.15665618941931986, -1.2075004208297682, 1.390835994169987, 1.2410362008759315]),
    ("sgd:lr=0.1,clip_value=0.5", [-1.7249999999999999, -1.325, -0.8500000000000001, -0.25, 0.1500000000000001, -0.2500000000000001, 1.325, 1.75]),
];

fn start() -> Vec<f64> {
    (0..8).map(|i| (f64::from(i) - 3.5) / 2.0).collect()
}

fn gradient(step: i32) -> Vec<f64> {
    (0..8).map(|i| f64::from((step * 7 + i * 13 + 3 * step * i) % 11 - 5) / 4.0).collect()
}

/// Bytes of so many copies of these numbers.
fn bytes(dtype: DType, numbers: &[f64], copies: usize) -> Vec<u8> {
    let all = numbers.iter().copied().cycle().take(numbers.len() * copies);
    match dtype {
        DType::F64 => all.flat_map(f64::to_le_bytes).collect(),
        DType::F32 => all.flat_map(|number| (number as f32).to_le_bytes()).collect(),
        DType::F16 => all.flat_map(|number| f16::from_f64(number).to_le_bytes()).collect(),
        DType::BF16 => all.flat_map(|number| bf16::from_f64(number).to_le_bytes()).collect(),
        integer => panic!("{integer}"),
    }
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let element = |element: &[u8]| match dtype {
        DType::F64 => f64::load(element.try_into().unwrap()),
        DType::F32 => f64::from(f32::load(element.try_into().unwrap())),
        DType::F16 => f64::from(f16::load(element.try_into().unwrap())),
        DType::BF16 => f64::from(bf16::load(element.try_into().unwrap())),
        integer => panic!("{integer}"),
    };
    bytes.chunks(dtype.bytes() as usize).map(element).collect()
}

/// The value after 20 steps, in blocks of so many bytes.
fn after(kernels: Kernels, text: &str, dtype: DType, copies: usize, block_bytes: usize) -> Vec<u8> {
    let rule: Rule = text.parse().unwrap();
    let mut value = bytes(dtype, &start(), copies);
    let mut state = OptimizerState::new(rule, dtype, value.len() as u64);
    for step in 0..20 {
        let mut gradients = bytes(dtype, &gradient(step), copies);
        state.step(kernels, None, value.chunks(block_bytes).zip(gradients.chunks_mut(block_bytes)));
        value = gradients;
    }
    assert_eq!(state.steps(), 20);
    value
}

#[test]
fn each_rule_does_what_its_optimizer_does() {
    for (text, expected) in EXPECTED {
        for (dtype, error) in [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 1e-2), (DType::BF16, 5e-2)] {
            let found = numbers(dtype, &after(Kernels::detect(), text, dtype, 1, 64));
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - expected).abs() <= error * (1.0 + expected.abs()),
                    "{text} {dtype}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn halves_are_changed_in_full_and_rounded_once() {
    // Each step is too small to be seen in the half-size type.
    let rule: Rule = "sgd:lr=0.0001".parse().unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let mut value = bytes(dtype, &[1.0], 1);
        let mut state = OptimizerState::new(rule, dtype, 2);
        let step = |value: &mut Vec<u8>, state: &mut OptimizerState| {
            let mut gradient = bytes(dtype, &[1.0], 1);
            state.step(Kernels::portable(), None, [(&value[..], &mut gradient[..])]);
            *value = gradient;
        };
        (0..1000).for_each(|_| step(&mut value, &mut state));
        let [found] = numbers(dtype, &value)[..] else { unreachable!() };
        assert!((found - 0.9).abs() < 0.004, "{dtype}: {found}");
        // A value that comes from elsewhere counts as it is.
        value = bytes(dtype, &[2.0], 1);
        state.handle_changed();
        step(&mut value, &mut state);
        assert_eq!(numbers(dtype, &value), [2.0]);
    }
}

#[test]
fn neither_blocks_nor_vectors_make_a_difference() {
    let copies = 200;
    for (text, _) in EXPECTED {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let whole = after(Kernels::portable(), text, dtype, copies, usize::MAX);
            for kernels in Kernels::all() {
                assert!(after(kernels, text, dtype, copies, 1000 * 8) == whole, "{text} {dtype} {kernels}");
            }
        }
    }
}

/// The averages after each of 100 steps, as bytes, in blocks of so many.
fn averages(kernels: Kernels, text: &str, dtype: DType, block_bytes: usize) -> Vec<[Vec<u8>; 2]> {
    let mut value = bytes(dtype, &start(), 100);
    let mut state = OptimizerState::new(text.parse().unwrap(), dtype, value.len() as u64);
    let mut after_step = |step| {
        let mut gradients = bytes(dtype, &gradient(step), 100);
        state.step(kernels, None, value.chunks(block_bytes).zip(gradients.chunks_mut(block_bytes)));
        value = gradients;
        [Average::Ema, Average::Window].map(|average| {
            let mut out = vec![0; value.len()];
            state.average(average, out.chunks_mut(block_bytes));
            out
        })
    };
    (0..100).map(&mut after_step).collect()
}

#[test]
fn averages_are_of_the_values_of_all_steps_and_of_the_last_windows() {
    let text = "sgd:lr=0.1,ema=0.7,ema_ramp=1,window=0.25,window_min=4,window_max=15";
    // The values are known: those of the same rule without averages.
    let (mut ema, mut window, mut former) = (start(), Vec::new(), Vec::new());
    let mut value = start();
    let mut closed = Vec::new();
    for (step, [found_ema, found_window]) in (0..).zip(averages(Kernels::detect(), text, DType::F64, 64 * 8)) {
        value.iter_mut().zip(gradient(step)).for_each(|(value, gradient)| *value -= 0.1 * gradient);
        window.push(value.clone());
        let steps = f64::from(step) + 1.0;
        let decay = 0.7_f64.min((1.0 + steps) / (10.0 + steps));
        ema.iter_mut().zip(&value).for_each(|(ema, value)| *ema = decay * *ema + (1.0 - decay) * value);
        if window.len() >= 4 && window.len() as f64 >= 15.0_f64.min(steps * 0.25) {
            former = std::mem::take(&mut window);
            closed.push(step + 1);
        }
        let of = |i: usize| former.iter().chain(&window).map(move |value: &Vec<f64>| value[i]);
        let mean: Vec<f64> = (0..8).map(|i| of(i).sum::<f64>() / of(i).count() as f64).collect();
        for (found, expected) in [(found_ema, &ema), (found_window, &mean)] {
            for (found, expected) in numbers(DType::F64, &found).chunks(8).flat_map(|found| found.iter().zip(expected))
            {
                assert!((found - expected).abs() < 1e-12, "step {step}: {found} {expected}");
            }
        }
    }
    assert_eq!(closed, [4, 8, 12, 16, 22, 30, 40, 54, 69, 84, 99], "shortest, a quarter of all steps, longest");
}

#[test]
fn averages_are_rounded_once_to_the_type_and_equal_on_all_machines() {
    let text = "adam:lr=0.1,ema=0.7,window=0.25,window_min=4,window_max=15";
    let exact = averages(Kernels::portable(), text, DType::F64, usize::MAX).pop().unwrap();
    for (dtype, error) in [(DType::F32, 1e-5), (DType::F16, 1e-2), (DType::BF16, 5e-2)] {
        let whole = averages(Kernels::portable(), text, dtype, usize::MAX);
        for kernels in Kernels::all() {
            assert!(averages(kernels, text, dtype, 50 * 8) == whole, "{dtype} {kernels}");
        }
        for (found, exact) in whole.last().unwrap().iter().zip(&exact) {
            for (found, exact) in numbers(dtype, found).into_iter().zip(numbers(DType::F64, exact)) {
                assert!((found - exact).abs() <= error * (1.0 + exact.abs()), "{dtype}: {found} {exact}");
            }
        }
    }
}

#[test]
fn a_long_window_loses_no_small_values() {
    let rule = "sgd:lr=0,window=1,window_min=100000,window_max=100000".parse().unwrap();
    let value = bytes(DType::F32, &[0.1], 1);
    let mut state = OptimizerState::new(rule, DType::F32, 4);
    for _ in 0..50_000 {
        state.step(Kernels::portable(), None, [(&value[..], &mut [0; 4][..])]);
    }
    let mut mean = [0; 4];
    state.average(Average::Window, [&mut mean[..]]);
    let [found] = numbers(DType::F32, &mean)[..] else { unreachable!() };
    assert!((found - 0.1).abs() < 1e-6, "{found}");
}

#[test]
fn averages_follow_no_change_but_steps() {
    let rule = "sgd:lr=1,ema=0.5,window=1".parse().unwrap();
    let mut state = OptimizerState::new(rule, DType::F32, 4);
    let step = |state: &mut OptimizerState, value: f64, gradient: f64| {
        let mut next = bytes(DType::F32, &[gradient], 1);
        state.step(Kernels::portable(), None, [(&bytes(DType::F32, &[value], 1)[..], &mut next[..])]);
    };
    let read = |state: &OptimizerState, average| {
        let mut out = [0; 4];
        state.average(average, [&mut out[..]]);
        numbers(DType::F32, &out)
    };
    step(&mut state, 8.0, 4.0);
    assert_eq!([Average::Ema, Average::Window].map(|average| read(&state, average)), [[6.0], [4.0]]);
    state.handle_changed();
    assert_eq!([Average::Ema, Average::Window].map(|average| read(&state, average)), [[6.0], [4.0]]);
    step(&mut state, 100.0, 0.0);
    assert_eq!([Average::Ema, Average::Window].map(|average| read(&state, average)), [[53.0], [52.0]]);
}

#[test]
fn muon_goes_along_the_orthogonal_momentum_of_the_whole_matrix() {
    // One element has one singular value, so each step is as long as any other: what the polynomial makes of 1, five times.
    let along = (0..5).fold(1.0_f64, |x, _| 3.4445 * x - 4.775 * x.powi(3) + 2.0315 * x.powi(5));
    for (text, shape, factor) in [
        ("muon:lr=0.1,weight_decay=0", [1, 1], 1.0),
        ("muon:lr=0.1,weight_decay=0", [4, 1], 2.0),
        ("muon:lr=0.1,weight_decay=0,adjust=match_rms_adamw", [4, 1], 0.4),
        ("muon:lr=0.1,weight_decay=0,adjust=spectral_unclamped", [1, 4], 0.5),
    ] {
        let rule = text.parse::<Rule>().unwrap().of_shape(&shape);
        let elements = shape[0] * shape[1];
        let mut state = OptimizerState::new(rule, DType::F64, elements * 8);
        let (value, mut next) = (bytes(DType::F64, &[1.0], 4), bytes(DType::F64, &[2.0], 4));
        let part = elements as usize * 8;
        state.step(Kernels::detect(), None, value[..part].chunks(8).zip(next[..part].chunks_mut(8)));
        // The norm of equal elements is shared by them.
        let expected = 1.0 - 0.1 * factor * along / (elements as f64).sqrt();
        for found in numbers(DType::F64, &next[..part]) {
            assert!((found - expected).abs() < 1e-12, "{text} {shape:?}: {found} {expected}");
        }
    }
}

#[test]
fn what_is_kept_is_what_is_booked() {
    for (text, rows) in [
        ("sgd", 0),
        ("sgd:momentum=0.9", 1),
        ("adamw", 2),
        ("rmsprop:momentum=0.5,centered=1", 3),
        ("sgd:ema=0.9", 1),
        ("adam:ema=0.9,window=0.1", 6),
        ("muon:ema=0.9", 3),
    ] {
        let rule = text.parse::<Rule>().unwrap().of_shape(&[4, 25]);
        for (dtype, sum, masters) in [(DType::F32, 4, 0), (DType::F64, 8, 0), (DType::BF16, 4, 1)] {
            let elements = 100;
            let state = OptimizerState::new(rule, dtype, elements * dtype.bytes());
            let kept = match &state.kept {
                Kept::F32(numbers) => 4 * numbers.len(),
                Kept::F64(numbers) => 8 * numbers.len(),
            };
            let booked = OptimizerState::bytes_of(&rule, dtype, elements * dtype.bytes());
            let working = if rule.optimizer().is_of_matrices() { WORKING_ROWS as u64 } else { 0 };
            assert_eq!(booked, elements * sum * (rows + masters + working), "{text} {dtype}");
            assert_eq!(kept as u64 + elements * sum * working, booked, "{text} {dtype}");
        }
    }
}

impl<R: Real> Numbers<R> {
    fn len(&self) -> usize {
        self.masters.len() + self.rows.iter().map(Vec::len).sum::<usize>() + self.averages.len()
    }
}
