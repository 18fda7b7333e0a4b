// Allocates objects at 1 GB/s, as told: for each line SECONDS, for so long; answers with the CPU time in nanoseconds per byte that the allocating thread took,
// and that the process took, with the collector.

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
    static Order[] recent = new Order[1024];

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

    public static void main(String[] arguments) throws Exception {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line; (line = lines.readLine()) != null;) {
            double seconds = Double.parseDouble(line);
            long begun = System.nanoTime(), ofThread = threads.getCurrentThreadCpuTime(), ofAll = system.getProcessCpuTime(), bytes = 0;
            for (double now = 0; now < seconds; now = (System.nanoTime() - begun) / 1e9) {
                if (bytes < now * 1e9) {
                    bytes += batch(bytes);
                } else {
                    Thread.sleep(1);
                }
            }
            double thread = threads.getCurrentThreadCpuTime() - ofThread, all = system.getProcessCpuTime() - ofAll;
            System.out.println(thread / bytes + " " + all / bytes);
        }
    }
}
