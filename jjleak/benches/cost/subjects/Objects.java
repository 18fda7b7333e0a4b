// A thread that is always busy: it allocates objects at 1 GB/s and computes in between. The amount of computation is fixed while it warms up, so
// that whatever costs time lowers the rate. For each line SECONDS, it runs for so long, and answers with the CPU time in nanoseconds per
// byte that the thread took, and that the process took, with the collector.

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;

public class Objects {
    static final class Order {
        final long number;
        final byte[] text;
        final Order next;

        Order(long number, byte[] text, Order next) {
            this.number = number;
            this.text = text;
            this.next = next;
        }
    }

    static final int PER_BATCH = 10_000_000;
    /** Nanoseconds that a batch and the computation after it take at 1 GB/s. */
    static final long BATCH_NS = 10_000_000;
    static Order[] recent = new Order[1024];
    static long state = 1;

    /** Returns the bytes that it has allocated. */
    static long batch(long number) {
        long bytes = 0;
        for (int i = 0; bytes < PER_BATCH; i++) {
            int length = 32 + (i * 37 & 255);
            Order next = recent[i * 7 & 1023];
            recent[i & 1023] = new Order(number + i, new byte[length], next == null || (i & 7) == 0 ? null : next.next);
            bytes += 32 + 16 + length;
        }
        return bytes;
    }

    static void compute(long steps) {
        long bits = state;
        for (long i = 0; i < steps; i++) {
            bits ^= bits << 13;
            bits ^= bits >>> 7;
            bits ^= bits << 17;
        }
        state = bits;
    }

    /** Returns the steps after which a batch has taken its time: halfway there from these, as both become faster. */
    static long adjusted(long steps, long batchNs, long stepsNs) {
        double wanted = (double) steps / Math.max(stepsNs, 1) * Math.max(BATCH_NS - batchNs, 0);
        return Math.max((long) (steps + wanted) / 2, 1000);
    }

    public static void main(String[] arguments) throws Exception {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        long steps = 1_000_000;
        boolean warm = false;
        for (String line; (line = lines.readLine()) != null; warm = true) {
            double seconds = Double.parseDouble(line);
            long begun = System.nanoTime(), ofThread = threads.getCurrentThreadCpuTime(), ofAll = system.getProcessCpuTime(), bytes = 0;
            for (long now = begun; (now - begun) / 1e9 < seconds;) {
                bytes += batch(bytes);
                long allocated = System.nanoTime();
                compute(steps);
                long computed = System.nanoTime();
                if (!warm) {
                    steps = adjusted(steps, allocated - now, computed - allocated);
                }
                now = computed;
            }
            double thread = threads.getCurrentThreadCpuTime() - ofThread, all = system.getProcessCpuTime() - ofAll;
            System.out.println(thread / bytes + " " + all / bytes);
        }
    }
}
